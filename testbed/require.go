package testbed

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// Require returns the binaries that a test needs, named as for [BuildOnly], [ContainerComponents] when none are
// named; what is missing is built, with progress on standard error. Where this machine cannot run
// containers, or a kubelet for a test that names it, the test is skipped and says why. With CI=true in the
// environment it fails instead, so that a CI that lost the ability cannot stay green. Tests that run with
// -short are skipped everywhere.
func Require(t testing.TB, names ...string) Binaries {
	t.Helper()
	if testing.Short() {
		t.Skip("left out: real runtimes take their time (-short)")
	}
	if reasons := requirementsOf(names); len(reasons) > 0 {
		for _, err := range reasons {
			t.Log(err)
		}
		if os.Getenv("CI") == "true" {
			t.Fatal("real runtimes cannot run here, and with CI=true that is a failure")
		}
		t.Skip("left out: real runtimes cannot run here")
	}
	if len(names) == 0 {
		names = ContainerComponents()
	}
	// Not t.Context: a build that was begun is of use to the next test.
	binaries, err := BuildOnly(context.Background(), os.Stderr, names...)
	if err != nil {
		t.Fatal(err)
	}
	return binaries
}

func requirementsOf(names []string) []error {
	if slices.Contains(names, KubeletBinary) {
		return KubeletRequirements()
	}
	return Requirements()
}

// NewRegistry starts a registry with the standard images that is closed when the test ends, as
// [StartRegistry] does without a test.
func NewRegistry(t testing.TB) *Registry {
	t.Helper()
	reg, err := StartRegistry(RegistryConfig{App: Require(t, App).App})
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

// NewContainerd starts an instance that is destroyed when the test ends, as [StartContainerd] does
// without a test, and fills in Config.Binaries, and Config.Registry from reg. The test fails if anything
// of the instance is left, and shows the end of its log whenever it fails.
func NewContainerd(t testing.TB, reg *Registry, config Config) *Containerd {
	t.Helper()
	config.Binaries = Require(t)
	config.Registry = reg.Addr
	c, err := StartContainerd(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.process.LogTail(30))
		}
		if err := c.Destroy(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return c
}

// NewKubelet starts a kubelet that is destroyed when the test ends, as [StartKubelet] does without a test, and fills
// in KubeletConfig.Binaries. The test fails if anything of it is left, and shows the end of its log
// whenever it fails.
func NewKubelet(t testing.TB, config KubeletConfig) *Kubelet {
	t.Helper()
	config.Binaries = Require(t, KubeletBinary)
	k, err := StartKubelet(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(k.complaints(30))
		}
		if err := k.Destroy(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return k
}

// Main is for TestMain of a package whose tests need the testbed. It says once, on standard error, what will
// be left out or done differently on this machine and why, and builds what is named ([ContainerComponents], when
// nothing is) before the tests' clock starts, because the first build may take longer than a test's time-out:
//
//	func TestMain(m *testing.M) { testbed.Main(m) }
//
// Packages take turns, because go test starts several at once, and a machine that is busy with another's containers
// makes outages of its own. Those with a kubelet, whose tests mostly wait, take turns among themselves. What is to be done before and after all tests goes into a type with the method Run,
// around m's.
func Main(m interface{ Run() int }, names ...string) {
	flag.Parse() // for testing.Short
	if !testing.Short() {
		prepare(names)
		if len(Requirements()) > 0 {
			os.Exit(m.Run()) // nothing will be started
		}
		if err := takeTurn(names); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// turn is kept, because a lock that nobody holds on to goes with the garbage.
var turn func()

// takeTurn waits until no other package's tests of this kind run. Its end is this process's end.
func takeTurn(names []string) error {
	file := "tests.lock"
	if slices.Contains(names, KubeletBinary) {
		file = "kubelet.lock"
	}
	cache, err := CacheDir()
	if err == nil {
		err = os.MkdirAll(cache, 0o755)
	}
	if err == nil {
		turn, err = lock(context.Background(), filepath.Join(cache, file), func() {
			fmt.Fprintln(os.Stderr, "testbed: waiting until the tests of another package are done")
		})
	}
	if err != nil {
		return fmt.Errorf("testbed: waiting for the machine: %w", err)
	}
	return nil
}

func prepare(names []string) {
	if reasons := requirementsOf(names); len(reasons) > 0 {
		what := "every test with real runtimes"
		if len(Requirements()) == 0 {
			what = "every test with a kubelet"
		}
		fmt.Fprintf(os.Stderr, "testbed: left out: %s, because\n", what)
		for _, err := range reasons {
			fmt.Fprintln(os.Stderr, "  ", err)
		}
		names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == KubeletBinary })
	}
	if len(Requirements()) > 0 {
		return
	}
	for _, note := range Notes() {
		fmt.Fprintln(os.Stderr, "testbed: note:", note)
	}
	// An error comes up again in Require, where a test can fail with it.
	if len(names) == 0 {
		names = ContainerComponents()
	}
	BuildOnly(context.Background(), os.Stderr, names...)
}
