package build

import (
	"context"
	"io"
	"os"
	"path/filepath"
)

// Binaries says where the built components are: the program of a component that has one, and the folder of one that has
// more. Fields of components that were not requested are empty.
type Binaries struct {
	Containerd map[string]string // :: "1.7" or "2.4" → folder with containerd, containerd-shim-runc-v2 and ctr
	Runc       string            // the program
	NoSeccomp  string            // the program that containerd calls as runc
	CNI        string            // the folder of the plugins
	Crictl     string            // the program
	App        string            // the program in the test images
	Kubelet    string            // the program
	Nerdctl    string            // the program
	Critest    string            // the program
	CRIO       string            // the folder with crio and pinns
	Guest      string            // the program
	GVisor     string            // the folder with runsc and shim
	Cluster    string            // the folder with kube-apiserver, kube-controller-manager, kube-scheduler, kubectl, server (etcd), ginkgo, agnhost and nonewprivs
	E2ENode    string            // the program
	Dockerd    string            // the program
	CRIDockerd string            // the program
	KoordProxy string            // the program
}

// Get returns the binaries of the named components, and builds those that are not in the cache. Without names it means
// [ForContainers]. The first build needs the Go module proxy and some minutes. Get reports on progress when the build of
// a component begins and ends; nil means silence.
//
// Several goroutines and processes may call Get at once: for each component they wait for each other, and share the
// result.
func Get(ctx context.Context, progress io.Writer, names ...string) (Binaries, error) {
	if len(names) == 0 {
		names = ForContainers()
	}
	if progress == nil {
		progress = io.Discard
	}
	b := Binaries{Containerd: map[string]string{}}
	source, err := SourceDir()
	if err != nil {
		return b, err
	}
	cache, err := CacheDir()
	if err != nil {
		return b, err
	}
	for _, name := range names {
		c, err := componentNamed(name)
		if err != nil {
			return b, err
		}
		dir, err := build(ctx, progress, c, source, cache)
		if err != nil {
			return b, err
		}
		switch name {
		case Containerd17:
			b.Containerd["1.7"] = dir
		case Containerd24:
			b.Containerd["2.4"] = dir
		default:
			*b.path(name) = dir
			if len(c.binaries) == 1 {
				*b.path(name) = filepath.Join(dir, c.binaries[0])
			}
		}
	}
	return b, nil
}

// path returns the field of a component other than containerd.
func (b *Binaries) path(name string) *string {
	return map[string]*string{
		Runc: &b.Runc, NoSeccomp: &b.NoSeccomp, CNI: &b.CNI, Crictl: &b.Crictl, App: &b.App, Kubelet: &b.Kubelet,
		Nerdctl: &b.Nerdctl, Critest: &b.Critest, CRIO: &b.CRIO, Guest: &b.Guest, GVisor: &b.GVisor, Cluster: &b.Cluster,
		E2ENode: &b.E2ENode, Dockerd: &b.Dockerd, CRIDockerd: &b.CRIDockerd, Koordinator: &b.KoordProxy,
	}[name]
}

// CacheDir returns the folder with the built components, one folder for each component and version:
// $CRIPROXY_TESTBED_CACHE, or criproxy-testbed in the user's cache folder. It is safe to remove while
// no runtime of it is running.
func CacheDir() (string, error) {
	if dir := os.Getenv("CRIPROXY_TESTBED_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		// Root without HOME, as under some service managers.
		dir = "/var/cache"
	}
	return filepath.Join(dir, "criproxy-testbed"), nil
}
