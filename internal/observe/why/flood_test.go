package why

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Two answers about one recording named another method, or another runtime first (issue 42).
func TestWhatIsEqualComesInOneOrder(t *testing.T) {
	v := &view{now: at(30)}
	for second := range 20 {
		for _, method := range []string{"Status", "ListContainers", "Version", "ListPodSandbox", "ImageStatus", "ListImages", "Status", "ListContainers", "Version", "ListPodSandbox", "ImageStatus", "ListImages"} {
			v.calls = append(v.calls, &call{method: method, from: "agent", began: at(second), ended: true})
		}
	}
	v.calls = append(v.calls, &call{method: "Status", from: "kubelet", began: at(29), ended: true})
	for range 20 {
		found := floods(v)
		require.Len(t, found, 1)
		assert.Contains(t, found[0].Text, "mostly ImageStatus;")
	}

	v = &view{now: at(30)}
	for _, runtime := range []string{"d.io", "b.io", "e.io", "a.io", "c.io"} {
		for _, method := range []string{"Status", "ListContainers", "ListPodSandbox"} {
			v.calls = append(v.calls, &call{method: method, from: "kubelet", began: at(0), took: 30 * time.Second, legs: []leg{{backend: runtime, took: 30 * time.Second}}})
		}
	}
	for range 20 {
		var names []string
		for _, h := range v.hangsOf() {
			names = append(names, h.backend)
		}
		assert.Equal(t, []string{"a.io", "b.io", "c.io", "d.io", "e.io"}, names)
	}
}
