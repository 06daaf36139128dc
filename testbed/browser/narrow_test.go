package browser

import (
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
)

// On a telephone the head took two thirds of the height. Issue 43.
func TestATelephoneShowsCalls(t *testing.T) {
	p := openReport(t)
	p.do(chromedp.EmulateViewport(390, 800))
	p.see(`document.documentElement.scrollWidth <= 390 && document.querySelectorAll(".row:not(.said)").length > 3`)
	assert.LessOrEqual(t, value[float64](p, `document.querySelector("main").getBoundingClientRect().top`), 800/3.0, "%v", value[[]string](p, `[...document.body.children].map((e) => (e.id || e.tagName) + " " + e.getBoundingClientRect().height)`))
	p.fill("pod", "vault-0")
	p.keys("\r")
	p.see(`document.querySelectorAll(".row:not(.said)").length > 3`)
	for _, about := range p.texts(".row:not(.said) .about") {
		assert.Contains(t, about, "vault-0")
	}
	p.picture("telephone")
}

// "criproxy serves" had the sign of "gone". Issue 43.
func TestOnlyRuntimesHaveTheSignOfACondition(t *testing.T) {
	m := start(t)
	p := open(t, m.link, dark(false))
	p.see(`[...document.querySelectorAll(".row.said .note")].some((e) => e.textContent.startsWith("criproxy serves"))`)
	p.see(`[...document.querySelectorAll(".row.said .note")].every((e) => Boolean(e.querySelector(".dot")) === /^(primary|kata\.io) /.test(e.textContent))`)
}
