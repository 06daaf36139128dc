package node

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/criproxy/criproxy/internal/observe/capture"
)

var runtimeChanged = Rule{
	Name:     "runtime",
	Symptoms: []string{"container runtime is*down", "container runtime not ready", "container runtime sanity check failed", "error while dialing", "connection refused*containerd.sock", "transport is closing", "runtimenotready"},
	Means:    "a runtime was gone (its process ended or hung), slow, or is another one than before.",
	Shown:    "the changes of the runtime's condition that criproxy noticed, the version that it reports before and after, and what happened to kubelet's calls meanwhile",
	Not:      "criproxy or its clients: they ran, and asked",
	Cure:     "read the runtime's log at that time (journalctl -u containerd, or crio). If nobody restarted it, look for the OOM killer (dmesg), a panic, or a disk that hangs",
	find: func(v *view) []Finding {
		return append(v.outages(), v.versions()...)
	},
}

// outages finds times in which a runtime was gone or slow.
func (v *view) outages() []Finding {
	var found []Finding
	byBackend := map[string][]*capture.Change{}
	var order []string
	for _, c := range v.changes {
		if c.Backend == "" {
			continue
		}
		if byBackend[c.Backend] == nil {
			order = append(order, c.Backend)
		}
		byBackend[c.Backend] = append(byBackend[c.Backend], c)
	}
	for _, name := range order {
		var bad []*capture.Change // the changes to slow or gone that count
		gone, slow := 0, 0
		all := byBackend[name]
		for _, c := range all {
			switch c.What {
			case capture.Gone:
				gone++
			case capture.Slow:
				slow++
			default:
				continue
			}
			bad = append(bad, c)
		}
		if len(bad) == 0 {
			continue
		}
		last, begun := all[len(all)-1], bad[0].Time
		for i := len(all) - 1; i >= 0 && all[i].What != capture.Up && all[i].What != capture.Removed; i-- {
			begun = all[i].Time
		}
		f := Finding{Level: Warning, Sure: Certain, About: name, Backends: []string{name}, Since: bad[0].Time, Last: last.Time, Count: len(bad), Show: "-status 'Unavailable|DeadlineExceeded'"}
		for i, c := range all {
			if i == 0 || i >= len(all)-maxChanges {
				f.Evidence = append(f.Evidence, Proof{c.Time, c.String()})
			}
		}
		var was []string
		if gone > 0 {
			was = append(was, "gone "+times(gone))
		}
		if slow > 0 {
			was = append(was, "slow "+times(slow))
		}
		f.Text = name + " was " + strings.Join(was, " and ")
		if why := bad[0].Why; why != "" {
			f.Text += " (" + cut(why, 120) + ")"
		}
		switch last.What {
		case capture.Up, capture.Removed:
			f.Over = true
			f.Text += fmt.Sprintf(", from %s until %s", clock(bad[0].Time), clock(last.Time))
		default:
			f.Last = v.now
			f.Since = begun
			f.Text = fmt.Sprintf("%s is %s since %s; from %s on it was %s", name, last.What, clock(last.Time), clock(bad[0].Time), strings.TrimPrefix(f.Text, name+" was "))
			if last.What == capture.Gone {
				f.Level = Error
			}
		}
		f.Text += v.meanwhile(name, bad[0].Time, f.Last)
		found = append(found, f)
	}
	return found
}

// maxChanges is how many of the latest changes of a condition a finding shows, beside the first.
const maxChanges = 5

// meanwhile says what happened to the calls of kubelet between two times, or to those of all clients if none of them is
// kubelet.
func (v *view) meanwhile(backend string, from, to time.Time) string {
	failed, remembered, sandboxes := 0, 0, 0
	whose, any := "kubelet", slices.ContainsFunc(v.calls, (*call).kubelet)
	if !any {
		whose = "clients"
	}
	for _, c := range v.calls {
		if c.own || any && !c.kubelet() || c.end().Before(from) || c.began.After(to) {
			continue
		}
		here := false
		for _, one := range c.legs {
			here = here || one.backend == backend
		}
		switch {
		case c.memory:
			remembered++
		case c.failed() && (here || c.code == codes.Unavailable):
			failed++
		case c.method == "RunPodSandbox" && c.ok() && here:
			sandboxes++
		}
	}
	var all []string
	for _, one := range []struct {
		n    int
		what string
	}{{remembered, "answered from memory"}, {failed, "failed"}, {sandboxes, "made a new sandbox"}} {
		if one.n > 0 {
			all = append(all, fmt.Sprintf("%d %s", one.n, one.what))
		}
	}
	if len(all) == 0 {
		return "; no call of " + whose + " failed because of it"
	}
	return "; of the calls of " + whose + ", " + strings.Join(all, ", ")
}

// versions finds runtimes that report another version than before.
func (v *view) versions() []Finding {
	var found []Finding
	before := map[string]string{}
	for _, c := range v.calls {
		if c.method != "Version" {
			continue
		}
		for _, one := range c.legs {
			if one.said == "" {
				continue
			}
			if was := before[one.backend]; was != "" && was != one.said {
				found = append(found, Finding{Level: Note, Sure: Certain, About: one.backend, Backends: []string{one.backend}, Since: c.began, Last: c.began, Over: true, Count: 1,
					Text:     fmt.Sprintf("%s is %s since %s; before it was %s", one.backend, one.said, clock(c.began), was),
					Cure:     "if nobody has upgraded or replaced it, find out who did",
					Evidence: []Proof{c.proof()}, Show: "-own -method Version -backend " + one.backend + " -full"})
			}
			before[one.backend] = one.said
		}
	}
	return found
}
