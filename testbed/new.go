package testbed

import (
	"bytes"
	"cmp"
	"context"
	"os"
	"slices"
	"strings"
	"testing"

	internalapi "k8s.io/cri-api/pkg/apis"

	"github.com/criproxy/criproxy/internal/testing/watchdog"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/internal/support"
	"github.com/criproxy/criproxy/testbed/kubelet"
	"github.com/criproxy/criproxy/testbed/proxy"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// NewRegistry starts a registry with the standard images and closes it when the test ends: see
// [runtimes.StartRegistry].
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

// NewContainerd starts an instance and destroys it when the test ends: see [runtimes.StartContainerd]. It
// sets Config.Binaries, and Config.Registry from reg. The test fails if anything of the instance is left. A
// failing test shows the end of the instance's log.
func NewContainerd(t testing.TB, reg *runtimes.Registry, config runtimes.Config) *runtimes.Containerd {
	t.Helper()
	names := build.ForContainerd(cmp.Or(config.Version, "2.4"))
	if config.GVisor {
		names = append(names, build.GVisor)
	}
	config.Binaries = Require(t, names...)
	config.Registry = reg.Addr
	c, err := runtimes.StartContainerd(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	support.Uses(t, map[string]string{"1.7": build.Containerd17, "2.4": build.Containerd24}[c.Version], "containerd")
	destroyAfter(t, c, func() string { return c.LogTail(30) })
	return c
}

// NewCRIO starts an instance and destroys it when the test ends, like NewContainerd.
func NewCRIO(t testing.TB, reg *runtimes.Registry, config runtimes.CRIOConfig) *runtimes.CRIO {
	t.Helper()
	config.Binaries = Require(t, append(build.ForContainers(), build.CRIO)...)
	config.Registry = reg.Addr
	c, err := runtimes.StartCRIO(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	support.Uses(t, build.CRIO, "CRI-O")
	destroyAfter(t, c, func() string { return c.LogTail(30) })
	return c
}

// NewKubelet starts a kubelet and destroys it when the test ends: see [kubelet.Start]. It sets Config.Binaries. The test
// fails if anything of the kubelet is left. A failing test shows the end of the kubelet's log.
func NewKubelet(t testing.TB, config kubelet.Config) *kubelet.Kubelet {
	t.Helper()
	config.Binaries = Require(t, build.Kubelet)
	k, err := kubelet.Start(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	support.Uses(t, build.Kubelet, "kubelet")
	destroyAfter(t, k, func() string { return k.Complaints(30) })
	return k
}

// NewClients returns the kubelet's own clients for a CRI socket, unix:///..., and closes them when the test ends: see
// [runtimes.Runtime] and [runtimes.Images].
func NewClients(t testing.TB, endpoint string) (internalapi.RuntimeService, internalapi.ImageManagerService) {
	t.Helper()
	runtime, err := runtimes.Runtime(t.Context(), endpoint)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { runtime.Close(context.Background()) })
	images, err := runtimes.Images(t.Context(), endpoint)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { images.Close(context.Background()) })
	return runtime, images
}

// NewProxy starts criproxy, built from this checkout, with a configuration file without listen and stateDir. NewProxy
// destroys it when the test ends. The test fails if criproxy has crashed or had a data race. A failing test shows the
// end of its log.
func NewProxy(t testing.TB, yaml string, flags ...string) *proxy.Proxy {
	t.Helper()
	program, err := build.Proxy()
	if err != nil {
		t.Fatal(err)
	}
	return NewProxyOf(t, program, yaml, flags...)
}

// NewProxyOf is NewProxy for another program.
func NewProxyOf(t testing.TB, program, yaml string, flags ...string) *proxy.Proxy {
	t.Helper()
	watchdog.UnderWay(t)
	p, err := proxy.Start(t.Context(), proxy.Config{Program: program, YAML: yaml, Flags: flags})
	if err != nil {
		t.Fatal(err)
	}
	destroyAfter(t, p, func() string { return p.LogTail(60) })
	t.Cleanup(func() { // runs before destroyAfter's
		data, _ := os.ReadFile(p.LogFile())
		for _, word := range []string{"WARNING: DATA RACE", "\npanic: ", "\nfatal error: "} {
			if i := bytes.Index(data, []byte(word)); i >= 0 {
				t.Errorf("criproxy: %s", firstLines(string(data[i:]), 60))
			}
		}
	})
	return p
}

// destroyAfter destroys x when the test ends. If the test has failed, or if something of x is left, it shows the end of
// the log of x.
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

// firstLines returns the first n lines of text, or all if there are fewer.
func firstLines(text string, n int) string {
	lines := slices.Collect(strings.Lines(strings.TrimLeft(text, "\n")))
	return strings.Join(lines[:min(n, len(lines))], "")
}
