package browser

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/observe/capture"
)

// cutOff is a recording whose beginning was overwritten, up to the middle of crictl's only call in it, and which misses
// seven events.
func cutOff(t *testing.T) *node {
	t.Helper()
	n := record(0)
	numbers := map[uint64]uint64{} // :: number of a call → its place in time
	crictls := map[uint64]bool{}
	cut := -1
	for i := range n.events {
		ev := &n.events[i]
		if numbers[ev.Call] == 0 {
			numbers[ev.Call] = uint64(len(numbers) + 1)
		}
		ev.Call = numbers[ev.Call]
		if ev.Kind == capture.Start && ev.Peer == crictl {
			if crictls[ev.Call] = true; cut < 0 {
				cut = i
			}
		}
	}
	require.Positive(t, cut)
	partial := n.events[cut].Call
	n.events = slices.DeleteFunc(n.events[cut+1:], func(ev capture.Event) bool { return crictls[ev.Call] && ev.Call != partial })
	at := len(n.events) / 2
	missed := capture.Event{Kind: capture.Missed, Missed: 7, Time: n.events[at].Time, Mono: n.events[at].Mono}
	n.events = slices.Insert(n.events, at, missed)
	for i := range n.events {
		n.events[i].Seq = uint64(i + 1)
	}
	return n
}

// A crash loses the latest calls, which nothing said.
func TestACrashIsSaidAmongTheCallsOfAPod(t *testing.T) {
	n := record(0)
	at := began.Add(5 * time.Minute)
	n.events = append(n.events, capture.Event{Kind: capture.Changed, Time: at, Mono: at.Sub(began), Change: &capture.Change{Time: at, What: capture.Serving, Missing: at.Add(-4 * time.Second), PID: 2}})
	n.inOrder()
	address, _ := report(t, n)
	p := open(t, address+"#pod=vault-0")
	p.see(`document.querySelectorAll(".row:not(.said)").length > 5`)
	p.see(`((v) => { const said = document.querySelector(".row.said.missing"); if (said) return said.textContent.endsWith("criproxy serves (the process before crashed or was killed: calls of the 4s before this may be missing)"); v.scrollTop += 300; })(document.querySelector("#view-calls"))`)
}

func TestWhatIsMissingIsSaidWhereItWouldStand(t *testing.T) {
	address, _ := report(t, cutOff(t))
	p := open(t, address)
	p.see(`document.body.dataset.ready && document.querySelectorAll(".row").length > 20`)
	first := p.texts(".row")[0]
	assert.Regexp(t, `^\d+ older calls are not shown: they were made before this recording began`, first)
	assert.True(t, value[bool](p, `document.querySelector(".row").classList.contains("missing")`))

	p.fill("method", "PullImage")
	p.see(`document.querySelectorAll(".row:not(.said)").length > 5 && document.querySelectorAll(".row:not(.said)").length < 20`)
	rows := p.texts(".row")
	at := slices.IndexFunc(rows, func(row string) bool { return strings.HasPrefix(row, "7 events are missing here") })
	require.Greater(t, at, 1, "between the calls before and after: %q", rows)
	assert.Less(t, at, len(rows)-1)

	p.fill("method", "Version")
	p.see(`document.querySelectorAll(".row:not(.said)").length === 1`)
	partial := p.texts(".row:not(.said)")[0]
	assert.Contains(t, partial, "beginning overwritten")
	assert.NotContains(t, partial, "crictl")
	p.keys(kb.Enter + "4")
	p.see(`document.querySelector("#view-talk .caption")`)
	assert.Equal(t, "1 call is left out: its beginning, which names the client, is overwritten.", p.texts("#view-talk .caption")[0])
	p.fill("method", "")
	p.see(`document.querySelectorAll(".talk g.who").length === 3`)
	who := strings.Join(p.texts(".talk g.who"), "\n")
	assert.Contains(t, who, "kubelet")
	assert.NotContains(t, who, "client")
	assert.NotContains(t, who, "crictl")
	assert.NotContains(t, who, "unknown")
}
