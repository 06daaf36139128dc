package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/internal/cri"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/observe/why"
)

var whyRecordings = flag.String("why-recordings", "", "a `FOLDER` of folders with recordings that were not made for criproxy why; make why makes them")

// judged says why findings in recordings that were not made for why are true: folder and rule → what was done there.
var judged = map[string]string{
	"chaos runtime": "runtimes are killed, stopped (SIGSTOP), and started again",

	"node-suite exec-probe":        "specs whose probes run `sleep 10` and may take 1s",
	"node-suite stuck-terminating": "programs of specs ignore SIGTERM",
	"node-suite pull":              "a spec names an image whose registry does not exist",
	"node-suite wiring":            "specs use the handler test-handler, which the runtime lacks",
	"node-suite runtime":           "24 specs at once on two processors: statistics took more than 2s",
	"node-suite slow-start":        "as above: a StartContainer took 42s",
}

// Nobody made these recordings for why. A person has to look at what it says of them, once for each rule and folder. With
// -update-why the rows of these folders are written into the table.
func TestWhyOnRecordingsThatWereNotMadeForIt(t *testing.T) {
	if *whyRecordings == "" {
		t.Skip("left out: make why makes the recordings, and runs this")
	}
	folders, err := os.ReadDir(*whyRecordings)
	require.NoError(t, err)
	const document, mark = "../../docs/evidence/why.md", "<!-- written by make why -->\n"
	before, rest, ok := strings.Cut(string(readFile(t, document)), mark)
	require.True(t, ok)
	table, after, ok := strings.Cut(rest, endMark)
	require.True(t, ok)
	for _, folder := range folders {
		files, count, lasted := 0, 0, time.Duration(0)
		found := map[string]int{}
		err := filepath.WalkDir(filepath.Join(*whyRecordings, folder.Name()), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			r := asKubelet(t, path)
			files, count, lasted = files+1, count+r.Seen.Calls, lasted+r.Seen.To.Sub(r.Seen.From)
			for _, f := range r.Findings {
				found[f.Rule]++
				t.Logf("%s: %s %s (%s): %s", path, f.Level, f.Rule, f.Sure, f.Text)
			}
			return nil
		})
		require.NoError(t, err)
		var rules, why []string
		wrong := 0
		for _, rule := range slices.Sorted(maps.Keys(found)) {
			reason := judged[folder.Name()+" "+rule]
			assert.NotEmpty(t, reason, "%s: nobody has judged the %d findings of %s", folder.Name(), found[rule], rule)
			if reason == "" {
				wrong += found[rule]
			}
			rules, why = append(rules, fmt.Sprintf("%s (%d)", rule, found[rule])), append(why, reason)
		}
		table = withRow(table, fmt.Sprintf("| %s | %d | %d | %s | %s | %s | %d |\n", folder.Name(), files, count, lasted.Round(time.Second), strings.Join(rules, ", "), strings.Join(why, "; "), wrong))
	}
	if *updateWhy {
		require.NoError(t, os.WriteFile(document, []byte(before+mark+table+endMark+after), 0o644))
	}
}

// withRow returns a table with a row, which replaces the one whose first cell is the same.
func withRow(table, row string) string {
	lines := slices.Collect(strings.Lines(table))
	rows := slices.DeleteFunc(lines[2:], func(line string) bool { return strings.Split(line, "|")[1] == strings.Split(row, "|")[1] })
	rows = append(rows, row)
	slices.Sort(rows)
	return strings.Join(append(lines[:2:2], rows...), "")
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return data
}

// asKubelet returns what the rules find in a recording, with all clients taken for kubelets: most rules look at its calls
// alone.
func asKubelet(t *testing.T, path string) why.Report {
	t.Helper()
	return lookedAt(t, path, func(ev *capture.Event) {
		if ev.Peer.Name != "" {
			ev.Peer.Name = "kubelet"
		}
	}).Report(why.Options{})
}

// lookedAt looks at the events of a recording, after edit has got each of them.
func lookedAt(t *testing.T, path string, edit func(*capture.Event)) *why.Look {
	t.Helper()
	d, err := criadapter.Config(criadapter.Options{})
	require.NoError(t, err)
	schema := d.Profile.AllVersions(d.Schema)
	names, err := cri.NewNames(d.Profile, schema, nil)
	require.NoError(t, err)
	r, err := capture.Open(path)
	require.NoError(t, err)
	defer r.Close() // it was only read
	look := why.New(schema, names)
	for {
		var ev capture.Event
		err := r.Next(&ev)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) { // criproxy was killed
			return look
		}
		require.NoError(t, err, path)
		edit(&ev)
		look.Add(&ev)
	}
}
