package fakecri_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/testing/testkit"
)

func TestAnAmbiguousImageIDIsRefused(t *testing.T) {
	c := start(t)
	c.pull("a")
	c.pull("b")
	_, err := c.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: "sha256:"}})
	testkit.AssertCode(t, codes.Unknown, err)
	_, err = c.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: "sha256:"}})
	testkit.AssertCode(t, codes.Unknown, err)
	assert.Len(t, c.rt.Images(), 2)
}
