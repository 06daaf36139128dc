package outage_test

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"
)

// A row is the result of one outage.
type row struct {
	lane, outage string
	restarts     int           // restarts that the kubelet counted, of all pods on the affected runtime
	sandboxes    int           // pods on it with another or an additional sandbox
	pids         int           // pods on it with another process
	age          time.Duration // greatest age of the kubelet's view
	noAge        string        // why there is no age
	restart      time.Duration // until a killed container on the other runtime is back
	usually      time.Duration // the same without an outage
	come, gone   time.Duration // of a new pod on the other runtime
	remembered   int           // answers from memory
	note         string
}

var table struct {
	sync.Mutex
	rows []row
}

func report(r row) {
	table.Lock()
	defer table.Unlock()
	table.rows = append(table.rows, r)
}

// reporting runs the tests and then prints the table.
type reporting struct{ *testing.M }

func (r reporting) Run() int {
	if !*long && !testing.Short() {
		fmt.Fprintln(os.Stderr, "outage: left out: longer outages, and most of them again (with -long -timeout 60m)")
	}
	code := r.M.Run()
	table.Lock()
	defer table.Unlock()
	if len(table.rows) == 0 {
		return code
	}
	w := tabwriter.NewWriter(os.Stderr, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nlane\toutage\trestarts\tsandboxes\tpids\tPLEG\trestart on the other (usually)\tnew pod there\tgone\tfrom memory\t")
	for _, r := range table.rows {
		age := r.noAge
		if age == "" {
			age = seconds(r.age)
		}
		restart := seconds(r.restart)
		if r.restart > 0 {
			restart += " (" + seconds(r.usually) + ")"
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%s\t%s\t%s\t%s\t%d\t%s\n", r.lane, r.outage, r.restarts, r.sandboxes, r.pids,
			age, restart, seconds(r.come), seconds(r.gone), r.remembered, r.note)
	}
	fmt.Fprintln(w, strings.TrimSpace(`
K20: the runtime was killed and back after 20 s; S20: it was stopped for 20 s; R: it was restarted; 2.5 s late, 65: for 65 s each list and each status came by so much later. The numbers are of its pods, the times of the other runtime's.`))
	w.Flush()
	return code
}

func seconds(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}
