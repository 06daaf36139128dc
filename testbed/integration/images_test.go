package integration

import (
	"context"
	"net/http"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// forget removes an image from both runtimes without the proxy at socket, so that the next pull fetches it. The proxy
// learns of the removal.
func (b *bench) forget(t testing.TB, socket, image string) {
	t.Helper()
	for _, s := range b.sides() {
		_, err := s.RemoveImage(context.Background(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: b.reg.Image(image)}})
		require.NoError(t, err)
		require.Nil(t, s.has(t, b.reg.Image(image)))
	}
	_, err := dial(t, socket, v1).ListImages(context.Background(), &runtimeapi.ListImagesRequest{})
	require.NoError(t, err)
}

// has returns the runtime's own status of an image, or nil if it has none.
func (s *side) has(t testing.TB, image string) *runtimeapi.Image {
	t.Helper()
	resp, err := s.ImageStatus(context.Background(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: image}})
	require.NoError(t, err)
	return resp.Image
}

// pulls watches the registry. The function that it returns says which runtimes have pulled since, by their versions,
// and asserts that all their requests succeeded.
func (b *bench) pulls(t testing.TB) func() []string {
	t.Helper()
	before := len(b.reg.Requests())
	return func() []string {
		t.Helper()
		var versions []string
		for _, r := range b.reg.Requests()[before:] {
			assert.Equal(t, http.StatusOK, r.Status, "%s %s", r.Method, r.Path)
			// "containerd/v1.7.35", whose last part does not matter
			version := strings.TrimPrefix(strings.TrimSuffix(r.UserAgent, path.Ext(r.UserAgent)), "containerd/v")
			if !slices.Contains(versions, version) {
				versions = append(versions, version)
			}
		}
		return versions
	}
}

func TestAPullGoesWhereTheImagesPrefixSays(t *testing.T) {
	each(t, func(t *testing.T, b *bench, s *side, c client) {
		b.forget(t, b.proxy.Socket(), "testbed/other:1")
		ref := s.reg.Image("testbed/other:1")
		pulled := b.pulls(t)
		resp, err := c.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{
			Image: s.image(ref), UserSpecifiedImage: s.image(ref), Annotations: map[string]string{"example.com/kept": "yes"},
		}})
		require.NoError(t, err)
		assert.Equal(t, []string{s.Containerd.Version}, pulled(), "who asked the registry")
		assert.Nil(t, b.other(s).has(t, ref))
		direct := s.has(t, ref)
		require.NotNil(t, direct)
		assert.Equal(t, s.image(direct.Id), resp.ImageRef)
	})
}

// Image garbage collection and kubelet's records of pulls compare these names. If they differ, kubelet removes images
// in use, or pulls them again for each container.
func TestAllNamesOfAnImageAgreeInFront(t *testing.T) {
	each(t, func(t *testing.T, b *bench, s *side, c client) {
		b.forget(t, b.proxy.Socket(), "testbed/app:1")
		ref := s.image(s.app())
		p := run(t, c, s, "names")
		id := p.pull(t, "testbed/app:1")
		imageID := id
		if s == b.one {
			imageID = "" // 1.7 lacks the field, and an empty value stays empty
		}
		image, err := c.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
		require.NoError(t, err)
		assert.Equal(t, id, image.Image.Id)
		assert.Equal(t, []string{ref}, image.Image.RepoTags)
		require.Len(t, image.Image.RepoDigests, 1)
		assert.True(t, strings.HasPrefix(image.Image.RepoDigests[0], s.image(s.reg.Image("testbed/app@sha256:"))), image.Image.RepoDigests)

		// As kubelet does: by the name that the pull returned.
		config := p.container()
		config.Image = &runtimeapi.ImageSpec{Image: id, UserSpecifiedImage: ref, ImageRef: image.Image.RepoDigests[0]}
		created, err := c.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: p.id, Config: config, SandboxConfig: p.config})
		require.NoError(t, err)

		list, err := c.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{Id: created.ContainerId}})
		require.NoError(t, err)
		require.Len(t, list.Containers, 1)
		container := list.Containers[0]
		assert.Equal(t, id, container.Image.Image)
		assert.Equal(t, id, container.ImageRef)
		assert.Equal(t, imageID, container.ImageId)

		status, err := c.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: created.ContainerId})
		require.NoError(t, err)
		assert.Equal(t, imageID, status.Status.ImageId)
		assert.Equal(t, ref, status.Status.Image.Image)
		assert.Equal(t, image.Image.RepoDigests[0], status.Status.ImageRef)
		assert.Empty(t, status.Status.Annotations, "as it was made")

		// A pod that a RuntimeClass sends there names the image without the prefix, and its status does so, too.
		bare := p.container()
		bare.Metadata.Name += "-bare"
		bare.Image = &runtimeapi.ImageSpec{Image: id, UserSpecifiedImage: s.app()}
		other, err := c.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: p.id, Config: bare, SandboxConfig: p.config})
		require.NoError(t, err)
		status, err = c.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: other.ContainerId})
		require.NoError(t, err)
		assert.Equal(t, s.app(), status.Status.Image.Image)
		assert.Equal(t, imageID, status.Status.ImageId)

		// The runtime does not see the prefix.
		direct := p.status(t, created.ContainerId)
		assert.Equal(t, imageID, s.image(direct.ImageId))
		assert.Equal(t, s.app(), direct.Image.Image)
		assert.NotContains(t, direct.ImageRef, second)

		// Each of the names finds it.
		for _, name := range []string{id, ref, image.Image.RepoDigests[0]} {
			found, err := c.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}})
			require.NoError(t, err)
			assert.Equal(t, id, found.Image.GetId(), name)
		}
	})
}

func TestRemovingAnImageLeavesTheOthers(t *testing.T) {
	each(t, func(t *testing.T, b *bench, s *side, c client) {
		ref := b.reg.Image("testbed/other:1")
		names := map[string]func(image *runtimeapi.Image) string{
			"tag":    func(*runtimeapi.Image) string { return ref },
			"id":     func(i *runtimeapi.Image) string { return i.Id },
			"digest": func(i *runtimeapi.Image) string { return i.RepoDigests[0] },
		}
		for by, name := range names {
			b.forget(t, b.proxy.Socket(), "testbed/other:1")
			for _, one := range b.sides() {
				_, err := c.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: one.image(ref)}})
				require.NoError(t, err)
			}
			mine, others := s.has(t, ref), b.other(s).has(t, ref)
			require.NotNil(t, mine)
			require.NotNil(t, others)
			require.Equal(t, mine.Id, others.Id, "they are one image, and the same names")
			_, err := c.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: s.image(name(mine))}})
			require.NoError(t, err)
			assert.Nil(t, s.has(t, ref), "removed by %s", by)
			assert.NotNil(t, b.other(s).has(t, ref), "removed by %s", by)

			gone, err := c.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: s.image(name(mine))}})
			require.NoError(t, err)
			if s == b.one {
				// Without a prefix the image may be on any runtime. If criproxy called an existing image absent, kubelet
				// would run the container as uid 0.
				assert.Equal(t, b.two.image(others.Id), gone.Image.GetId(), by)
			} else {
				assert.Nil(t, gone.Image, by)
			}
			there, err := c.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: b.other(s).image(name(others))}})
			require.NoError(t, err)
			assert.Equal(t, b.other(s).image(others.Id), there.Image.GetId(), by)
		}
	})
}
