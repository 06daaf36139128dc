package fakecri_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/fakecri"
)

func TestTheCallLogIsBoundedAndCanBeOff(t *testing.T) {
	c := start(t, fakecri.Config{CallLog: 3})
	off := start(t, fakecri.Config{CallLog: -1})
	for _, id := range strings.Split("abcdefghijk", "") {
		for _, c := range []*client{c, off} {
			_, err := c.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
			require.NoError(t, err)
		}
		assert.LessOrEqual(t, len(c.rt.Calls()), 3)
	}
	var ids string
	for _, call := range c.rt.Calls() {
		ids += call.Request.(*runtimeapi.StopPodSandboxRequest).GetPodSandboxId()
	}
	assert.Equal(t, "ijk", ids)
	assert.Empty(t, off.rt.Calls())
}
