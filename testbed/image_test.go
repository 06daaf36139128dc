package testbed_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

func TestPullsGoOverTheWire(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench) {
		assert.Empty(t, b.reg.Requests(), "what filled the registry does not count")
		b.pull(t, "testbed/app:1")
		var manifests, blobs int
		for _, r := range b.reg.Requests() {
			assert.Contains(t, r.UserAgent, "containerd/")
			switch {
			case strings.HasPrefix(r.Path, "/v2/testbed/app/manifests/") && r.Status == http.StatusOK:
				manifests++
			case strings.HasPrefix(r.Path, "/v2/testbed/app/blobs/") && r.Method == http.MethodGet && r.Status == http.StatusOK:
				blobs++
			}
		}
		assert.Positive(t, manifests)
		assert.Equal(t, 3, blobs, "a config and two layers")

		_, err := b.images.PullImage(t.Context(), &runtimeapi.ImageSpec{Image: b.reg.Image("testbed/none:1")}, nil, nil)
		assert.Equal(t, codes.NotFound, status.Code(err), err)
	})
}

func TestImagesDifferInContent(t *testing.T) {
	b := start(t, runtimes.Config{})
	digests := map[string]string{} // :: image id → image
	for _, image := range []string{"testbed/pause:1", "testbed/app:1", "testbed/app:2", "testbed/other:1", "testbed/user:1"} {
		b.pull(t, image)
		resp, err := b.images.ImageStatus(t.Context(), &runtimeapi.ImageSpec{Image: b.reg.Image(image)}, false)
		require.NoError(t, err)
		assert.NotContains(t, digests, resp.Image.Id)
		digests[resp.Image.Id] = image
		if image == "testbed/user:1" {
			assert.EqualValues(t, 1000, resp.Image.Uid.GetValue())
		}
	}
}

func TestMirrorsRedirectPulls(t *testing.T) {
	bin := testbed.Require(t)
	reg, err := runtimes.StartRegistry(runtimes.RegistryConfig{App: bin.App})
	require.NoError(t, err)
	defer reg.Close()
	for _, version := range versions {
		b := start(t, runtimes.Config{Version: version, Mirrors: map[string]string{"registry.test": reg.Addr, "docker.io": reg.Addr}})
		for _, image := range []string{"registry.test/testbed/app:1", "docker.io/testbed/app:1"} {
			_, err := b.images.PullImage(t.Context(), &runtimeapi.ImageSpec{Image: image}, nil, nil)
			assert.NoError(t, err)
		}
	}
	assert.NotEmpty(t, reg.Requests())
}

func TestARegistryCanRequireCredentials(t *testing.T) {
	bin := testbed.Require(t)
	reg, err := runtimes.StartRegistry(runtimes.RegistryConfig{App: bin.App, Username: "lab", Password: "secret"})
	require.NoError(t, err)
	defer reg.Close()
	onEach(t, func(t *testing.T, b *bench) {
		image := &runtimeapi.ImageSpec{Image: reg.Image("testbed/app:1")}
		for _, auth := range []*runtimeapi.AuthConfig{nil, {Username: "lab", Password: "wrong"}} {
			_, err := b.images.PullImage(t.Context(), image, auth, nil)
			assert.Error(t, err)
		}
		_, err := b.images.PullImage(t.Context(), image, &runtimeapi.AuthConfig{Username: "lab", Password: "secret"}, nil)
		assert.NoError(t, err)
		requests := reg.Requests()
		assert.Equal(t, http.StatusUnauthorized, requests[0].Status)
		assert.Equal(t, "lab", requests[len(requests)-1].Username)
	})
}

func TestImagesAreCopiedWithoutOverlayfs(t *testing.T) {
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			b := start(t, runtimes.Config{Version: version, Snapshotter: "native"})
			_, _, id := b.run(t, "copied")
			out, _, err := b.runtime.ExecSync(t.Context(), id, []string{"app", "file", "/etc/image"}, 0)
			require.NoError(t, err)
			assert.Equal(t, "testbed/app:1\n", string(out))
			require.NoError(t, b.Kill()) // so that Destroy must find the container without the daemon
		})
	}
}
