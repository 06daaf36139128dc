package show

import (
	"bytes"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"

	"github.com/criproxy/criproxy/internal/observe/admin"
)

// report is of a node with trouble of every kind, in long words.
func report(now time.Time) *admin.Report {
	return &admin.Report{
		Version: "1.0.0", PID: 4711, Started: now.Add(-time.Hour), Ready: true,
		Listeners: []admin.Listener{{Path: "/run/criproxy.sock", Mode: "0660", Owner: "root:root", Lost: 2}},
		Admin:     "/run/criproxy.admin.sock",
		Backends: []admin.Backend{
			{Name: "primary", State: "up", Since: now.Add(-time.Hour), Runtime: "containerd\x1b v2.4.2", API: []string{"runtime.v1"}, Pods: new(12), Containers: new(31), Images: new(9), Address: "/run/containerd/containerd.sock"},
			{Name: "virtlet.cloud", State: "gone", Since: now.Add(-time.Minute), Error: "dial unix /run/virtlet.sock: connect: connection\x1b[1A refused", NeverSeen: true, Address: "/run/virtlet.sock",
				Outages: []admin.Outage{{State: "gone", From: now.Add(-time.Minute), Error: "dial unix /run/virtlet.sock: connect: connection\x1b[2J refused"}}},
		},
		Errors:   []admin.CallError{{Time: now, Method: "StopContainer", Backend: "virtlet.cloud", Code: "Unavailable", Message: strings.Repeat("no way ", 40), Count: 3}},
		Recorder: &admin.Recorder{Oldest: now.Add(-time.Hour)},
		Config:   admin.Config{File: "/etc/criproxy/config.yaml", Loaded: now.Add(-time.Hour)},
	}
}

// df -h stood at the end of a line, and its folder in the next one (a stranger).
func TestACommandStaysTogether(t *testing.T) {
	assert.Equal(t, "  look at df -h /a;\n  df -i /a show what\n  is full\n", Wrap("look at df -h /a; df -i /a show what is full", 2, 20))
	assert.Equal(t, "run -a b -c\nd -e -> x\n", Wrap("run -a b -c d -e -> x", 0, 11), "a long one does not fit")
}

func TestNothingWrapsOnANarrowScreen(t *testing.T) {
	now := time.Now()
	var b bytes.Buffer
	printStatus(&Screen{Out: &b, Width: 80}, report(now), now)
	assert.Contains(t, b.String(), "virtlet.cloud: it was not seen since this node booted")
	for line := range strings.Lines(b.String()) {
		assert.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), 80, line)
	}
	assert.Contains(t, b.String(), "socket /run/containerd/containerd.sock", "what has no room in its row stands below it")
}

func TestColoursAreOnlyForTerminals(t *testing.T) {
	now := time.Now()
	var plain, coloured bytes.Buffer
	printStatus(NewScreen(&plain), report(now), now)
	assert.NotContains(t, plain.String(), "\x1b", "of the program or of a runtime")
	printStatus(&Screen{Out: &coloured, Colour: true}, report(now), now)
	text := coloured.String()
	for _, c := range []Colour{Bold, Red, Green, Yellow} {
		assert.Contains(t, text, string(c))
		text = strings.ReplaceAll(text, string(c), "")
	}
	assert.Equal(t, plain.String(), strings.ReplaceAll(text, "\x1b[0m", ""))
}

func TestTheRecorderSaysHowFarBackItReaches(t *testing.T) {
	now := time.Date(2026, 11, 27, 12, 0, 0, 0, time.Local)
	r := report(now)
	shown := func() string {
		var b bytes.Buffer
		printStatus(&Screen{Out: &b}, r, now)
		_, recorder, _ := strings.Cut(b.String(), "RECORDER\n")
		recorder, _, _ = strings.Cut(recorder, "\n\n")
		return strings.TrimSpace(recorder)
	}
	const all = "has the calls of the last 1h0m, since 11:00:00: criproxy tail -past shows them; flightRecorder keeps more, and capture all"
	assert.Equal(t, all, shown())
	r.Recorder.Notable = now.Add(-26 * time.Hour)
	assert.Equal(t, all+"\n  has those that failed, were slow or changed something of the last 26h0m, since 2026-11-26 10:00:00", shown())
	r.Recorder.Notable = r.Recorder.Oldest
	assert.Equal(t, all, shown())
}

func TestATableIsAsWideAsItsCells(t *testing.T) {
	var b bytes.Buffer
	s := &Screen{Out: &b}
	var table Table
	table.Row("A", "ü", "LONGER", "x", "C", "y")
	table.Row("A", "long one", "LONGER", "", "C", "z")
	s.Table(&table)
	assert.Equal(t, "A         LONGER  C\nü         x       y\nlong one          z\n", b.String())
}

// The status of another API than CRI had five columns of dashes. Issue 43.
func TestAColumnWithoutAnythingIsNotShown(t *testing.T) {
	now := time.Now()
	r := report(now)
	var cri, other bytes.Buffer
	printStatus(&Screen{Out: &cri}, r, now)
	assert.Regexp(t, `(?m)^BACKEND +STATE +SINCE +RUNTIME +API +PODS +CONTAINERS +IMAGES +SOCKET$`, cri.String(), "one runtime has something")
	for i := range r.Backends {
		b := &r.Backends[i]
		b.Runtime, b.API, b.Pods, b.Containers, b.Images = "", nil, nil, nil, nil
	}
	printStatus(&Screen{Out: &other}, r, now)
	assert.Regexp(t, `(?m)^BACKEND +STATE +SINCE +SOCKET$`, other.String())
	assert.Regexp(t, `(?m)^virtlet\.cloud +gone +1m0s +/run/virtlet\.sock$`, other.String())
}
