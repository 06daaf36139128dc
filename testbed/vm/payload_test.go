package vm

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// versions are the versions of the previous release, whose package is built from history, and of this checkout's.
var versions = [2]string{"0.0.1", "0.0.2"}

// registry is the registry in the names of the machine's images; nothing is pulled.
const registry = "registry.test"

// payload makes the folder with the machine's files that are not in its image: programs, criproxy's packages, images of
// pods, and the files of a node below root.
func payload(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	at := func(path string) string { return filepath.Join(dir, path) }
	for _, folder := range []string{"bin", "deb", "images"} {
		require.NoError(t, os.Mkdir(at(folder), 0o755))
	}
	binaries, err := build.Get(t.Context(), os.Stderr, needed...)
	require.NoError(t, err)
	for to, from := range map[string]string{
		"guest": binaries.Guest, "kubelet": binaries.Kubelet, "crictl": binaries.Crictl,
		"containerd24": binaries.Containerd["2.4"], "cni": binaries.CNI,
	} {
		require.NoError(t, command(t.Context(), "cp", "-r", from, at("bin/"+to)))
	}

	source, err := build.SourceDir()
	require.NoError(t, err)
	plugin := host.CommandWithin(t.Context(), 10*time.Minute, "go", "build", "-buildvcs=false", "-o", at("bin/plugin"), "./hook/plugin/example")
	plugin.Dir, plugin.Env = filepath.Dir(source), append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
	out, err := plugin.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for i, version := range versions {
		dist, packages := t.TempDir(), build.Packages
		if i == 0 {
			packages = build.PreviousPackages
		}
		require.NoError(t, packages(t.Context(), version, "amd64", dist, "deb"))
		made, err := filepath.Glob(filepath.Join(dist, "*.deb"))
		require.NoError(t, err)
		require.Len(t, made, 1)
		require.NoError(t, os.Rename(made[0], at("deb/"+version+".deb")))
	}

	reg, err := runtimes.StartRegistry(runtimes.RegistryConfig{App: binaries.App})
	require.NoError(t, err)
	defer reg.Close()
	for _, image := range []string{"pause:1", "app:1"} {
		ref, err := name.ParseReference(reg.Image("testbed/"+image), name.Insecure)
		require.NoError(t, err)
		content, err := remote.Image(ref)
		require.NoError(t, err)
		tag, err := name.NewTag(registry + "/testbed/" + image)
		require.NoError(t, err)
		require.NoError(t, tarball.WriteToFile(at("images/"+image[:len(image)-2]+".tar"), tag, content))
	}

	require.NoError(t, os.CopyFS(at("root"), os.DirFS("testdata/node")))
	dropIn, err := os.ReadFile(filepath.Join(source, "../packaging/kubelet/20-criproxy.conf"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(at("root/etc/systemd/system/kubelet.service.d/20-criproxy.conf"), dropIn, 0o644))
	return dir
}
