package testbed

import (
	"bytes"
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
)

// buildProxyOnce builds criproxy once for all tests of a program.
var buildProxyOnce = sync.OnceValues(func() (string, error) { return BuildProxy(context.Background()) })

// NewProxy starts criproxy, built from this checkout, with a configuration file, which need not say where to listen
// and where to keep its state. It is destroyed when the test ends. The test fails if it crashed meanwhile or had
// a data race, and shows the end of its log whenever it fails.
func NewProxy(t testing.TB, yaml string, flags ...string) *Proxy {
	t.Helper()
	program, err := buildProxyOnce()
	if err != nil {
		t.Fatal(err)
	}
	p, err := StartProxy(t.Context(), ProxyConfig{Program: program, YAML: yaml, Flags: flags})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		data, _ := os.ReadFile(p.LogFile())
		for _, word := range []string{"WARNING: DATA RACE", "\npanic: ", "\nfatal error: "} {
			if i := bytes.Index(data, []byte(word)); i >= 0 {
				t.Errorf("criproxy: %s", firstLines(string(data[i:]), 60))
			}
		}
		if t.Failed() {
			t.Log(p.process.LogTail(60))
		}
		if err := p.Destroy(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return p
}

// firstLines returns at most n lines of text, the first ones.
func firstLines(text string, n int) string {
	lines := slices.Collect(strings.Lines(strings.TrimLeft(text, "\n")))
	return strings.Join(lines[:min(n, len(lines))], "")
}
