package integration

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// to returns the annotation that chooses a runtime.
func to(name string) map[string]string { return map[string]string{target: name} }

func TestPodsRunWhereHandlerOrAnnotationSays(t *testing.T) {
	b := start(t)
	for _, version := range []string{v1, v1alpha2} {
		c := dial(t, b.proxy.Socket(), version)
		for name, pod := range map[string]struct {
			handler     string
			annotations map[string]string
			want        *side
			wantHandler string // on the runtime
		}{
			"nothing":                      {want: b.one},
			"a handler of the primary":     {handler: "alt", want: b.one, wantHandler: "alt"},
			"a mapped handler":             {handler: "two-alt", want: b.two, wantHandler: "alt"},
			"one mapped to the default":    {handler: "other", want: b.two, wantHandler: ""},
			"the annotation":               {annotations: to(second), want: b.two},
			"annotation and its handler":   {handler: "alt", annotations: to(second), want: b.two, wantHandler: "alt"},
			"a mapped handler goes first":  {handler: "two-alt", annotations: to(second), want: b.two, wantHandler: "alt"},
			"an empty annotation is as no": {annotations: to(""), want: b.one},
		} {
			t.Run(version+" "+name, func(t *testing.T) {
				config := pod.want.PodConfig("choice")
				config.Annotations["example.com/kept"] = "as it is"
				maps.Copy(config.Annotations, pod.annotations)
				p := runWith(t, c, pod.want, config, pod.handler)
				assert.Empty(t, b.other(pod.want).pods(t))
				has := pod.want.pods(t)[p.back(t)]
				assert.Equal(t, pod.wantHandler, has.RuntimeHandler)
				assert.Equal(t, config.Annotations, has.Annotations, "annotations are the client's")

				inFront := pod.handler // clients see the same name, whatever the runtime calls it
				if pod.handler == "alt" && pod.want == b.two {
					inFront = "two-alt"
				} else if pod.want == b.two && pod.wantHandler == "" {
					inFront = "other" // the name of its default
				}
				resp, err := c.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.id})
				require.NoError(t, err)
				assert.Equal(t, p.id, resp.Status.Id)
				assert.Equal(t, inFront, resp.Status.RuntimeHandler)
			})
		}
	}
}

// Stop and Remove succeed for unknown ids: only the runtimes show whether criproxy has called the right one.
func TestStopAndRemoveReachOnlyTheOwner(t *testing.T) {
	each(t, func(t *testing.T, b *bench, s *side, c client) {
		mine, others := run(t, c, s, "mine"), run(t, c, b.other(s), "others")
		id, bystander := mine.start(t), others.start(t)
		running := func() {
			t.Helper()
			assert.Equal(t, runtimeapi.ContainerState_CONTAINER_RUNNING, others.status(t, bystander).State)
			assert.Equal(t, runtimeapi.PodSandboxState_SANDBOX_READY, others.side.pods(t)[others.back(t)].State)
		}
		_, err := c.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 20})
		require.NoError(t, err)
		assert.Equal(t, runtimeapi.ContainerState_CONTAINER_EXITED, mine.status(t, id).State)
		running()
		_, err = c.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id})
		require.NoError(t, err)
		assert.Empty(t, s.containers(t))
		running()
		mine.remove(t)
		assert.Empty(t, s.pods(t))
		running()
	})
}
