package browser

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/recorded"
)

// leave leaves a recording of a time until now in a state folder, as a criproxy that has crashed does: the calls of a
// kubelet with 100 pods, of which the repository has three minutes, over and over. It returns how many calls these are.
func leave(t *testing.T, dir string, reach time.Duration) (calls int) {
	t.Helper()
	header, all := recorded.Read(t, filepath.Join("..", "..", "internal", "server", "testdata", "node100.blocks"))
	rec := capture.NewRecorder(capture.Config{Bytes: 32 << 20, Schema: criadapter.Schema()})
	recorded.UntilNow(all, reach, func(ev *capture.Event) {
		if rec.Add(ev); ev.Kind == capture.Start && ev.Leg == 0 {
			calls++
		}
	})
	k := capture.NewKeeper(rec, filepath.Join(dir, "recorder-1.blocks"), func() capture.FileHeader { return header })
	require.NoError(t, k.Close())
	return calls
}

// A page begins with the latest calls, and says so. It has older ones when somebody asks for them.
func TestOlderCallsAreLoadedWhenSomebodyAsks(t *testing.T) {
	calls := 0
	m := startWith(t, func(dir string) { calls = leave(t, dir, 7*time.Minute) })
	p := open(t, m.link)
	const shown = `Number((document.querySelector("#facts b")?.textContent || "0").replaceAll(",", ""))`
	const note = `document.querySelector(".row.missing")?.textContent`
	p.see(`document.querySelectorAll(".row").length > 10 && !document.querySelector("#older").hidden`)
	m.pod("web", "")
	p.see(`[...document.querySelectorAll(".row .about")].some((e) => e.textContent.includes("default/web"))`)
	few := value[int](p, shown)
	t.Logf("%d of %d calls at first: %v of criproxy ui, %v of criproxy", few, calls, used(t, m.ui.Process.Pid), used(t, m.proxy.Process.Pid))
	assert.Greater(t, few, 1000)
	assert.Less(t, few, calls*2/3)
	p.keys("7")
	p.see(`/Calls before \d\d:\d\d:\d\d are not loaded.*criproxy why looks/.test(document.querySelector("#view-findings").textContent)`)
	p.keys("1g")
	p.see(`/^Calls before \d\d:\d\d:\d\d are not loaded; criproxy's recording reaches back to .*Click/.test(` + note + `)`)
	rows := p.texts(".row:not(.said)")
	before := rows[slices.IndexFunc(rows, func(row string) bool { return !strings.Contains(row, "beginning not loaded") })] // that changes

	m.version() // which draws the table anew, below the same row
	p.see(fmt.Sprintf(`Number(%s.replaceAll(",", "")) > %d && document.querySelector(".row.missing.at")`, count, few))
	p.keys("\r") // the row of what is not loaded
	p.see(shown + fmt.Sprint(" >= ", calls))
	t.Logf("all: %v of criproxy ui, %v of criproxy", used(t, m.ui.Process.Pid), used(t, m.proxy.Process.Pid))
	p.see(`document.querySelector("#older").hidden && !location.hash.includes("top=")`)
	assert.Contains(t, value[[]string](p, `[...document.querySelectorAll(".row:not(.said)")].filter((r) => r.getBoundingClientRect().bottom > document.querySelector("#grid .head").getBoundingClientRect().bottom).slice(0, 4).map((r) => r.textContent)`), before, "the page is where it was")
	p.keys("g")
	p.see(`!/are not loaded/.test(` + note + `) && document.querySelector(".row[data-i='0']")`)
}
