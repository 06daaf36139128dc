package fakecri_test

import (
	"strings"
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

func TestEveryImageCanBePulledAndIsKnownByItsNamesAndID(t *testing.T) {
	c := start(t, fakecri.Config{})
	id := c.pull("busybox")
	assert.Regexp(t, `^sha256:[0-9a-f]{64}$`, id)
	got := c.image("busybox")
	assert.Equal(t, id, got.GetId())
	assert.Equal(t, []string{"docker.io/library/busybox:latest"}, got.GetRepoTags())
	require.Len(t, got.GetRepoDigests(), 1)
	assert.Regexp(t, `^docker\.io/library/busybox@sha256:[0-9a-f]{64}$`, got.GetRepoDigests()[0])
	assert.NotZero(t, got.GetSize())

	for _, name := range []string{
		"busybox:latest", "library/busybox", "docker.io/busybox", "docker.io/library/busybox:latest",
		got.GetRepoDigests()[0], strings.Replace(got.GetRepoDigests()[0], "@", ":v1@", 1),
		id, strings.TrimPrefix(id, "sha256:"), id[:15], strings.TrimPrefix(id, "sha256:")[:12],
	} {
		assert.Equal(t, id, c.image(name).GetId(), name)
	}
}

func TestNamesWithADomainStayAsTheyAre(t *testing.T) {
	c := start(t, fakecri.Config{})
	for name, want := range map[string]string{
		"registry:5000/a":        "registry:5000/a:latest",
		"registry:5000/a:v1":     "registry:5000/a:v1",
		"localhost/a":            "localhost/a:latest",
		"beta.io/registry:5000/": "beta.io/registry:5000/:latest",
		"team/a":                 "docker.io/team/a:latest",
	} {
		c.pull(name)
		assert.Equal(t, []string{want}, c.image(name).GetRepoTags(), name)
	}
}

func TestAnAbsentImageIsAnEmptyAnswer(t *testing.T) {
	c := start(t, fakecri.Config{})
	reply, err := c.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: "absent"}})
	require.NoError(t, err)
	assertProto(t, &runtimeapi.ImageStatusResponse{}, reply)
	_, err = c.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{})
	assertCode(t, codes.Unknown, err)
	_, err = c.PullImage(t.Context(), &runtimeapi.PullImageRequest{})
	assertCode(t, codes.InvalidArgument, err)
}

func TestNamesOfTheSameContentAreOneImageInAllRuntimes(t *testing.T) {
	cfg := fakecri.Config{Content: func(name string) string { return name[strings.LastIndexByte(name, ':'):] }}
	c, other := start(t, cfg), start(t, cfg)
	id := c.pull("a:v1")
	assert.Equal(t, id, c.pull("b:v1"))
	assert.Equal(t, id, other.pull("c:v1"))
	assert.NotEqual(t, id, c.pull("a:v2"))
	got := c.image(id)
	assert.Equal(t, []string{"docker.io/library/a:v1", "docker.io/library/b:v1"}, got.GetRepoTags())
	require.Len(t, got.GetRepoDigests(), 2)

	_, digest, _ := strings.Cut(got.GetRepoDigests()[0], "@")
	assert.Equal(t, id, c.pull("b@"+digest), "a digest is the same content")
	assert.Equal(t, id, other.pull("d@"+digest))
}

func TestATagMovesWhenItsContentChanges(t *testing.T) {
	content := make(chan string, 2)
	c := start(t, fakecri.Config{Content: func(string) string { return <-content }})
	content <- "old"
	old := c.pull("a")
	content <- "new"
	id := c.pull("a")
	assert.NotEqual(t, old, id)
	assert.Equal(t, id, c.image("a").GetId())
	assert.Empty(t, c.image(old).GetRepoTags())
	assert.Len(t, c.image(old).GetRepoDigests(), 1)
}

func TestAnImageIsRemovedByIDOrByAnyNameWithAllOfThem(t *testing.T) {
	c := start(t, fakecri.Config{Content: func(string) string { return "same" }})
	for _, name := range []string{"", "a", "b", "docker.io/library/a:latest"} {
		id := c.pull("a")
		c.pull("b")
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

func TestListImagesIgnoresItsFilter(t *testing.T) {
	c := start(t, fakecri.Config{})
	c.pull("a")
	c.pull("b")
	reply, err := c.ListImages(t.Context(), &runtimeapi.ListImagesRequest{
		Filter: &runtimeapi.ImageFilter{Image: &runtimeapi.ImageSpec{Image: "a"}},
	})
	require.NoError(t, err)
	require.Len(t, reply.GetImages(), 2)
	for i, image := range c.rt.Images() {
		assertProto(t, image, reply.GetImages()[i])
	}
}

func TestTheImageFilesystemHoldsTheImages(t *testing.T) {
	c := start(t, fakecri.Config{ImageMount: "/images"})
	c.pull("a")
	c.pull("b")
	reply, err := c.ImageFsInfo(t.Context(), &runtimeapi.ImageFsInfoRequest{})
	require.NoError(t, err)
	require.Len(t, reply.GetImageFilesystems(), 1)
	assert.Empty(t, reply.GetContainerFilesystems())
	fs := reply.GetImageFilesystems()[0]
	assert.Equal(t, "/images", fs.GetFsId().GetMountpoint())
	assert.Equal(t, c.image("a").GetSize()+c.image("b").GetSize(), fs.GetUsedBytes().GetValue())
}
