package browser

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the pictures of the documentation, docs/images, anew")

func (p *tab) picture(name string) {
	p.t.Helper()
	if !*update {
		return
	}
	p.see(`!document.getAnimations().length`)
	shot, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
	require.NoError(p.t, err)
	shot = small(p.t, shot)
	require.Less(p.t, len(shot), 200<<10, name)
	require.NoError(p.t, os.WriteFile(filepath.Join("..", "..", "docs", "images", name+".png"), shot, 0o644))
}

// small reduces a picture to its 256 most frequent colours.
func small(t *testing.T, data []byte) []byte {
	t.Helper()
	source, err := png.Decode(bytes.NewReader(data))
	require.NoError(t, err)
	counts := map[color.RGBA]int{}
	bounds := source.Bounds()
	at := func(x, y int) color.RGBA { return color.RGBAModel.Convert(source.At(x, y)).(color.RGBA) }
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			counts[at(x, y)]++
		}
	}
	colours := slices.SortedFunc(maps.Keys(counts), func(a, b color.RGBA) int {
		return cmp.Or(counts[b]-counts[a], cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)))
	})
	// Skip colours that are similar to one in the palette, so that rare hues have room.
	var palette color.Palette
	for _, near := range []int{24, 8, 0} {
		for _, c := range colours {
			if len(palette) < 256 && !slices.ContainsFunc(palette, func(have color.Color) bool { return distance(have.(color.RGBA), c) <= near }) {
				palette = append(palette, c)
			}
		}
	}
	nearest := map[color.RGBA]uint8{}
	out := image.NewPaletted(bounds, palette)
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			c := at(x, y)
			i, ok := nearest[c]
			if !ok {
				i = uint8(palette.Index(c))
				nearest[c] = i
			}
			out.SetColorIndex(x, y, i)
		}
	}
	var small bytes.Buffer
	require.NoError(t, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&small, out))
	return small.Bytes()
}

func distance(a, b color.RGBA) int {
	abs := func(x, y uint8) int { return max(int(x)-int(y), int(y)-int(x)) }
	return abs(a.R, b.R) + abs(a.G, b.G) + abs(a.B, b.B)
}

// This test takes the pictures of the documentation.
func TestPicturesShowANode(t *testing.T) {
	address, _ := report(t, record(0))
	p := open(t, address, dark(false))
	p.see(`document.body.dataset.ready`)
	p.see(`document.querySelectorAll(".row").length > 20`)
	value[bool](p, `(document.querySelector("#view-calls").scrollTop = 26 * 712, true)`)
	p.see(`document.querySelectorAll(".row.failed").length > 1`)
	p.picture("calls")
	p.keys("2")
	p.see(`document.querySelectorAll(".lane").length > 8`)
	p.picture("pods")
	p.keys("3")
	p.see(`document.querySelectorAll(".dist").length > 5`)
	p.picture("latency")
	p.keys("4")
	p.see(`document.querySelector(".talk")`)
	p.picture("talk")
	p.keys("1")
	p.fill("find", "vault-0")
	p.keys(kb.Enter + "jjj" + kb.Enter)
	p.see(`document.querySelectorAll("#detail mark").length > 1`)
	p.picture("call")
	p.keys(kb.Escape + kb.Escape)
	p.do(dark(true))
	p.fill("pod", "vault-0")
	p.keys(kb.Enter + "5")
	p.see(`document.querySelector(".seq")`)
	p.picture("sequence")
	p.keys(kb.Escape + "2")
	p.see(`document.querySelectorAll(".lane").length > 8`)
	p.picture("pods-dark")
}
