package fakecri_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/fakecri"
)

func (c *client) image(name string) *runtimeapi.Image {
	c.t.Helper()
	reply, err := c.ImageStatus(c.t.Context(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}})
	require.NoError(c.t, err)
	return reply.GetImage()
}

func TestAnImageIsRemovedWithAllItsNames(t *testing.T) {
	c := start(t, fakecri.Config{})
	for _, name := range []string{"", "a", "docker.io/library/a:latest"} {
		id := c.pull("a")
		c.pull(c.rt.Images()[0].GetRepoDigests()[0]) // the same content
		if name == "" {
			name = id
		}
		_, err := c.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: name}})
		require.NoError(t, err)
		assert.Empty(t, c.rt.Images(), name)
		assert.Nil(t, c.image("a"), name)
		assert.Nil(t, c.image(id), name)
	}
}

func TestAnAmbiguousImageIDIsRefused(t *testing.T) {
	c := start(t, fakecri.Config{})
	c.pull("a")
	c.pull("b")
	_, err := c.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: "sha256:"}})
	assertCode(t, codes.Unknown, err)
	_, err = c.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: "sha256:"}})
	assertCode(t, codes.Unknown, err)
	assert.Len(t, c.rt.Images(), 2)
}
