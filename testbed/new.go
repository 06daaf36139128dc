package testbed

import (
	"bytes"
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/kubelet"
	"github.com/criproxy/criproxy/testbed/proxy"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// NewRegistry starts a registry with the standard images that is closed when the test ends, as
// [runtimes.StartRegistry] does without a test.
func NewRegistry(t testing.TB) *runtimes.Registry {
	t.Helper()
	reg, err := runtimes.StartRegistry(runtimes.RegistryConfig{App: Require(t, build.App).App})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := reg.Close(); err != nil {
			t.Error(err)
		}
	})
	return reg
}

// NewContainerd starts an instance that is destroyed when the test ends, as [runtimes.StartContainerd] does
// without a test, and fills in Config.Binaries, and Config.Registry from reg. The test fails if anything
// of the instance is left, and shows the end of its log whenever it fails.
func NewContainerd(t testing.TB, reg *runtimes.Registry, config runtimes.Config) *runtimes.Containerd {
	t.Helper()
	names := build.ForContainers()
	if config.GVisor {
		names = append(names, build.GVisor)
	}
	config.Binaries = Require(t, names...)
	config.Registry = reg.Addr
	c, err := runtimes.StartContainerd(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	destroyAfter(t, c, func() string { return c.LogTail(30) })
	return c
}

// NewCRIO starts an instance that is destroyed when the test ends, as NewContainerd does.
func NewCRIO(t testing.TB, reg *runtimes.Registry, config runtimes.CRIOConfig) *runtimes.CRIO {
	t.Helper()
	config.Binaries = Require(t, append(build.ForContainers(), build.CRIO)...)
	config.Registry = reg.Addr
	c, err := runtimes.StartCRIO(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	destroyAfter(t, c, func() string { return c.LogTail(30) })
	return c
}

// NewKubelet starts a kubelet that is destroyed when the test ends, as [kubelet.Start] does without a test, and fills
// in Config.Binaries. The test fails if anything of it is left, and shows the end of its log
// whenever it fails.
func NewKubelet(t testing.TB, config kubelet.Config) *kubelet.Kubelet {
	t.Helper()
	config.Binaries = Require(t, build.Kubelet)
	k, err := kubelet.Start(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	destroyAfter(t, k, func() string { return k.Complaints(30) })
	return k
}

// buildProxyOnce builds criproxy once for all tests of a program.
var buildProxyOnce = sync.OnceValues(func() (string, error) { return build.Proxy(context.Background(), build.Raced) })

// NewProxy starts criproxy, built from this checkout, with a configuration file, which need not say where to listen
// and where to keep its state. It is destroyed when the test ends. The test fails if it crashed meanwhile or had
// a data race, and shows the end of its log whenever it fails.
func NewProxy(t testing.TB, yaml string, flags ...string) *proxy.Proxy {
	t.Helper()
	program, err := buildProxyOnce()
	if err != nil {
		t.Fatal(err)
	}
	p, err := proxy.Start(t.Context(), proxy.Config{Program: program, YAML: yaml, Flags: flags})
	if err != nil {
		t.Fatal(err)
	}
	destroyAfter(t, p, func() string { return p.LogTail(60) })
	t.Cleanup(func() { // before that
		data, _ := os.ReadFile(p.LogFile())
		for _, word := range []string{"WARNING: DATA RACE", "\npanic: ", "\nfatal error: "} {
			if i := bytes.Index(data, []byte(word)); i >= 0 {
				t.Errorf("criproxy: %s", firstLines(string(data[i:]), 60))
			}
		}
	})
	return p
}

// destroyAfter destroys x when the test ends. It shows the end of its log if the test has failed, which it has if
// something of x is left.
func destroyAfter(t testing.TB, x interface{ Destroy(context.Context) error }, log func() string) {
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(log())
		}
		if err := x.Destroy(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// firstLines returns at most n lines of text, the first ones.
func firstLines(text string, n int) string {
	lines := slices.Collect(strings.Lines(strings.TrimLeft(text, "\n")))
	return strings.Join(lines[:min(n, len(lines))], "")
}
