package testbed_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

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
			_, id := b.run(t, "copied")
			out, _, err := b.runtime.ExecSync(t.Context(), id, []string{"app", "file", "/etc/image"}, 0)
			require.NoError(t, err)
			assert.Equal(t, "testbed/app:1\n", string(out))
			require.NoError(t, b.Kill()) // so that Destroy must find the container without the daemon
		})
	}
}
