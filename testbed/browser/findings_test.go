package browser

import (
	"net/url"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/testing/bounded"
)

// reportOf makes a page of one of the recordings of criproxy why, and opens it.
func reportOf(t *testing.T, recording string) *tab {
	t.Helper()
	return reportOfAll(t, filepath.Join("../../testdata/why", recording))
}

// reportOfAll makes a page of recordings, and opens it.
func reportOfAll(t *testing.T, recordings ...string) *tab {
	t.Helper()
	chromium(t)
	program, err := criproxy()
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "report.html")
	out, err := bounded.Command(t, program, append([]string{"view", "-html", path}, recordings...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	p := open(t, (&url.URL{Scheme: "file", Path: path}).String())
	p.see(`document.body.dataset.ready`)
	return p
}

func TestThePageSaysWhatIsWrong(t *testing.T) {
	p := reportOf(t, "pull-hangs.jsonl.zst")
	p.see(`[...document.querySelectorAll("#strip button")].some((e) => e.textContent.includes("1 finding") && e.textContent.includes("primary has been pulling "))`)
	p.see(`document.querySelector("#tab-findings .count").textContent === "1"`)
	value[bool](p, `(document.querySelector("#tab-findings").click(), true)`)
	p.see(`document.querySelector("#view-findings .card").textContent.includes("kubelet pulls one image at a time")`)
	p.see(`document.querySelector("#view-findings .card").textContent.includes("try the registry from this node")`)
	value[bool](p, `(document.querySelector("#view-findings .card button").click(), true)`)
	p.see(`!document.querySelector("#view-calls").hidden && [...document.querySelectorAll(".row .method")].length > 0 && [...document.querySelectorAll(".row .method")].every((e) => e.textContent === "PullImage")`)
	p.see(`document.querySelectorAll(".row:not(.said)").length === 1`)
}

func TestThePageSaysThatNothingIsWrong(t *testing.T) {
	p := reportOf(t, "healthy.jsonl")
	value[bool](p, `(document.querySelector("#tab-findings").click(), true)`)
	p.see(`document.querySelector("#view-findings .empty").textContent.includes("Nothing is wrong that the calls show")`)
	p.see(`![...document.querySelectorAll("#strip button")].some((e) => e.textContent.includes("finding"))`)
}
