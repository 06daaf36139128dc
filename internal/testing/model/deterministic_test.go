package model

import (
	"encoding/json"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/testing/bounded"
)

// A patch replaces one piece of a file of Go's standard library.
type patch struct{ file, old, new string }

// patches make goroutines in a bubble of testing/synctest run in the same order each time: Go draws the case of a select,
// the beginning of a map iteration and the order of timers at the same instant at random, stops goroutines
// that run for long, and seeds the hashes of maps anew in each process. Package context ends the contexts below
// one in the order of a map of pointers, which are others in each process. Everything else in the order
// of goroutines follows from GOMAXPROCS=1.
var patches = []patch{
	// One sequence of random numbers for a bubble, which begins anew with it.
	{"runtime/rand.go", "func rand() uint64 {\n", `func rand() uint64 {
	if gp := getg().m.curg; gp != nil && gp.bubble != nil {
		return simulatedRand()
	}
`},
	{"runtime/select.go", "j := cheaprandn(uint32(norder + 1))\n", `j := cheaprandn(uint32(norder + 1))
		if getg().bubble != nil {
			j = uint32(simulatedRand() % uint64(norder+1))
		}
`},
	{"runtime/time.go", "t.rand = cheaprand()\n", "t.rand = uint32(simulatedRand())\n"},
	{"runtime/rand.go", "var readRandomFailed bool\n", `var readRandomFailed bool

var simulatedState uint64

//go:nosplit
func simulatedRand() uint64 {
	simulatedState += 0x9e3779b97f4a7c15
	z := simulatedState
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
`},
	{"runtime/synctest.go", "\tbubble.now = synctestBaseTime\n", "\tbubble.now = synctestBaseTime\n\tsimulatedState = 1\n"},
	// The same hashes in each process.
	{"runtime/rand.go", "seed[i%len(seed)] ^= c\n", "seed[i%len(seed)] = c - c + byte(i) + 1\n"},
	// No goroutine is stopped because it runs for long, or is in a system call.
	{"runtime/proc.go", "func retake(now int64) uint32 {\n\tn := 0\n", "func retake(now int64) uint32 {\n\tn := 0\n\tif now > 0 {\n\t\treturn 0\n\t}\n"},
	// The program does not collect garbage. GOGC=off does not prevent a collection that the program asks for, as a successor does
	// once it has kept what it inherited: runtime.GC yields after each span that it sweeps, and so as often as the heap wants.
	{"runtime/mgc.go", "func GC() {\n", "func GC() {\n\tif getg().bubble != nil {\n\t\treturn\n\t}\n"},
	// The scheduler looks at the global queue at the same moments, whatever the runtime's own goroutines do.
	{"runtime/proc.go", "\tif !inheritTime {\n\t\tmp.p.ptr().schedtick++\n", "\tif !inheritTime && gp.bubble != nil {\n\t\tmp.p.ptr().schedtick++\n"},
	// A mutex goes to the goroutine that has waited for a millisecond, of the simulated clock.
	{"runtime/sema.go", "func internal_sync_nanotime() int64 {\n", "func internal_sync_nanotime() int64 {\n\tif b := getg().bubble; b != nil {\n\t\treturn b.now\n\t}\n"},
	// A context ends those below it in the order in which they were made.
	{"context/context.go", "children map[canceler]struct{} //", "last     int\n\tchildren map[canceler]int //"},
	{"context/context.go", "p.children = make(map[canceler]struct{})\n", "p.children = make(map[canceler]int)\n"},
	{"context/context.go", "p.children[child] = struct{}{}\n", "p.last++\n\t\t\tp.children[child] = p.last\n"},
	{"context/context.go", "\tfor child := range c.children {\n", `	var inOrder []canceler
	for child, n := range c.children {
		at := len(inOrder)
		for at > 0 && c.children[inOrder[at-1]] > n {
			at--
		}
		inOrder = append(inOrder[:at], append([]canceler{child}, inOrder[at:]...)...)
	}
	for _, child := range inOrder {
`},
}

// compile compiles this package's tests with the patched library.
func compile(t *testing.T) (program string) {
	dir := t.TempDir()
	root, err := bounded.Command(t, "go", "env", "GOROOT").Output()
	require.NoError(t, err)
	replace := map[string]string{}
	texts := map[string]string{}
	for _, p := range patches {
		path := filepath.Join(strings.TrimSpace(string(root)), "src", filepath.FromSlash(p.file))
		if texts[path] == "" {
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			texts[path] = string(data)
		}
		require.Equal(t, 1, strings.Count(texts[path], p.old), "%s of %s has another text than expected; patches must be adapted to it: %q", path, goruntime.Version(), p.old)
		texts[path] = strings.Replace(texts[path], p.old, p.new, 1)
	}
	for path, text := range texts {
		file := filepath.Join(dir, filepath.Base(path))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		replace[path] = file
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600))
	program = filepath.Join(dir, "model.test")
	cmd := bounded.Build(t, "test", "-c", "-vet=off", "-overlay", filepath.Join(dir, "overlay.json"), "-o", program, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}
