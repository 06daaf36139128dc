package page

import (
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// seen returns a colour as somebody with deuteranopia sees it, in CIELAB. The matrix is that of Machado, Oliveira and
// Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency" (2009), for the severity 1.
func seen(t *testing.T, hex string) [3]float64 {
	t.Helper()
	var linear [3]float64
	for i := range linear {
		n, err := strconv.ParseUint(hex[2*i:2*i+2], 16, 8)
		require.NoError(t, err)
		v := float64(n) / 255
		if linear[i] = v / 12.92; v > 0.04045 {
			linear[i] = math.Pow((v+0.055)/1.055, 2.4)
		}
	}
	times := func(m [3][3]float64, v [3]float64) (out [3]float64) {
		for i, row := range m {
			out[i] = row[0]*v[0] + row[1]*v[1] + row[2]*v[2]
		}
		return out
	}
	rgb := times([3][3]float64{{0.367322, 0.860646, -0.227968}, {0.280085, 0.672501, 0.047413}, {-0.011820, 0.042940, 0.968881}}, linear)
	for i := range rgb {
		rgb[i] = min(max(rgb[i], 0), 1)
	}
	xyz := times([3][3]float64{{0.4124, 0.3576, 0.1805}, {0.2126, 0.7152, 0.0722}, {0.0193, 0.1192, 0.9505}}, rgb)
	for i, white := range []float64{0.9505, 1, 1.089} {
		if v := xyz[i] / white; v > 0.008856 {
			xyz[i] = math.Cbrt(v)
		} else {
			xyz[i] = 7.787*v + 16./116
		}
	}
	return [3]float64{116*xyz[1] - 16, 500 * (xyz[0] - xyz[1]), 200 * (xyz[1] - xyz[2])}
}

// A difference of 2.3 can just be noticed on large areas. The marks of the page are small. Failed calls and conditions are
// not among these, because shapes, patterns and words tell them apart.
func TestKindsOfCallsStayApartUnderDeuteranopia(t *testing.T) {
	const apart = 18
	css, err := files.ReadFile("page/page.css")
	require.NoError(t, err)
	for side, theme := range []string{"light", "dark"} {
		colours := map[string][3]float64{}
		for _, kind := range []string{"sandbox", "pull", "run", "probe", "stop", "poll"} {
			found := regexp.MustCompile(`--` + kind + `: light-dark\(#([0-9a-f]{6}), #([0-9a-f]{6})\)`).FindStringSubmatch(string(css))
			require.NotNil(t, found, kind)
			colours[kind] = seen(t, found[1+side])
		}
		kinds := slices.Sorted(maps.Keys(colours))
		for i, a := range kinds {
			for _, b := range kinds[:i] {
				x, y := colours[a], colours[b]
				assert.GreaterOrEqual(t, math.Hypot(math.Hypot(x[0]-y[0], x[1]-y[1]), x[2]-y[2]), float64(apart), "%s and %s, %s", a, b, theme)
			}
		}
	}
}
