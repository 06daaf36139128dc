package vm

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/testbed/internal/serial"
)

// A watch reads the events that guest watch has written to a file of the machine since a time.
type watch struct {
	*node
	file   string
	offset int
}

// watched begins to read the events of the unit watch.service, which lists all the time from the boot on.
func (n *node) watched() *watch {
	n.Helper()
	w := &watch{node: n, file: "/run/watch"}
	w.offset, _ = strconv.Atoi(n.run("stat", "-c", "%s", w.file))
	return w
}

// underLoad lists, ten times a second at most, until stop is called. Without a pause the lists would starve an emulated machine,
// and the process that takes over would not start in its minute.
func (n *node) underLoad() (w *watch, stop func()) {
	n.Helper()
	w = &watch{node: n, file: "/run/load"}
	n.run("systemd-run", "--unit=load", "/payload/bin/guest", "watch", "/run/criproxy.sock", w.file, "100ms")
	n.eventually("lists to be asked for", func() error { return w.more(0, 10) })
	return w, func() { n.run("systemctl", "stop", "load") }
}

// more fails until the unit has made so many more calls.
func (w *watch) more(after, count int) error {
	events, err := w.read()
	if err != nil {
		return err
	}
	if now := calls(events); now < after+count {
		return fmt.Errorf("%d calls so far, %d before", now, after)
	}
	return nil
}

func (w *watch) read() (events []serial.Event, err error) {
	out, err := w.try("tail", "-c", "+"+strconv.Itoa(w.offset+1), w.file)
	if err != nil {
		return nil, err
	}
	for lines := bufio.NewScanner(strings.NewReader(out)); lines.Scan(); {
		var e serial.Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			break // the last line is being written
		}
		events = append(events, e)
	}
	return events, nil
}

// events returns the events so far. First it waits for some more calls, so that the current state is among them.
func (w *watch) events() (events []serial.Event) {
	w.Helper()
	events, err := w.read()
	require.NoError(w, err)
	before := calls(events)
	w.eventually("lists to go on", func() error { return w.more(before, 6) })
	events, err = w.read()
	require.NoError(w, err)
	return events
}

func calls(events []serial.Event) int {
	if len(events) == 0 {
		return 0
	}
	return events[len(events)-1].Calls
}

// failures returns the errors among events.
func failures(events []serial.Event) (all []string) {
	for _, e := range events {
		if e.Error != "" {
			all = append(all, fmt.Sprintf("%.1fs: %s", e.Uptime, e.Error))
		}
	}
	return all
}

// neverMissing asserts that each list had these pods, ready, and a running container of each.
func neverMissing(n *node, events []serial.Event, pods ...string) {
	n.Helper()
	for _, e := range events {
		if e.Pods == nil {
			continue
		}
		for _, pod := range pods {
			in := func(all map[string]string, what string) bool {
				return slices.ContainsFunc(slices.Collect(maps.Values(all)), func(s string) bool { return strings.HasPrefix(s, what) })
			}
			assert.True(n, in(e.Pods, pod+"-testbed SANDBOX_READY"), "a list without pod %s, %.1fs after the boot: %v", pod, e.Uptime, e.Pods)
			assert.True(n, in(e.Containers, pod+"-testbed/app CONTAINER_RUNNING"), "a list without the container of %s, %.1fs after the boot: %v", pod, e.Uptime, e.Containers)
		}
	}
}

// livingIn returns the ids of ready sandboxes and running containers.
func livingIn(e serial.Event) map[string]bool {
	ids := map[string]bool{}
	for id, s := range e.Pods {
		if strings.Contains(s, "SANDBOX_READY") {
			ids[id] = true
		}
	}
	for id, s := range e.Containers {
		if strings.Contains(s, "CONTAINER_RUNNING") {
			ids[id] = true
		}
	}
	return ids
}

// last returns the last answer among events.
func last(events []serial.Event) (answer serial.Event) {
	for _, e := range events {
		if e.Pods != nil {
			answer = e
		}
	}
	return answer
}
