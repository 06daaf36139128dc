package testbed

import (
	"context"
	"testing"
)

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
