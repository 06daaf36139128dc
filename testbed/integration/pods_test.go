package integration

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// to returns the annotation that chooses a runtime.
func to(name string) map[string]string { return map[string]string{target: name} }

func TestPodsRunWhereHandlerOrAnnotationSays(t *testing.T) {
	b := start(t)
	for _, version := range []string{v1, v1alpha2} {
		c := dial(t, b.proxy.socket, version)
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

func TestUnknownTargetsAreRefusedWithTheKnownOnes(t *testing.T) {
	b := start(t)
	for _, version := range []string{v1, v1alpha2} {
		c := dial(t, b.proxy.socket, version)
		config := b.one.PodConfig("nowhere")
		config.Annotations[target] = "three.test"
		_, err := c.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: config})
		assert.Equal(t, codes.InvalidArgument, status.Code(err), err)
		assert.ErrorContains(t, err, "three.test")
		assert.ErrorContains(t, err, second)
		_, err = c.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: b.one.app()}, SandboxConfig: config})
		assert.Equal(t, codes.InvalidArgument, status.Code(err), err)
		assert.ErrorContains(t, err, second)
		for _, s := range b.sides() {
			assert.Empty(t, s.pods(t))
		}
	}
}

func TestAContainerLivesAndDiesOnItsRuntime(t *testing.T) {
	each(t, func(t *testing.T, b *bench, s *side, c client) {
		p := run(t, c, s, "life")
		config := p.container("print", "hello", "then", "warn", "careful", "then", "sleep")
		id := p.create(t, config)
		assert.Empty(t, b.other(s).containers(t))
		assert.Equal(t, runtimeapi.ContainerState_CONTAINER_CREATED, p.status(t, id).State)

		_, err := c.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id})
		require.NoError(t, err)
		assert.Equal(t, runtimeapi.ContainerState_CONTAINER_RUNNING, p.status(t, id).State)
		p.log(t, "app", "hello\n") // the order of the two streams is not guaranteed
		log := p.log(t, "app", "careful")
		assert.Contains(t, log, "stdout F hello\n")
		assert.Contains(t, log, "stderr F careful\n")

		resp, err := c.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
		require.NoError(t, err)
		assert.Equal(t, id, resp.Status.Id)
		assert.Equal(t, p.logFile("app"), resp.Status.LogPath, "a path of the node's")

		_, err = c.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 20})
		require.NoError(t, err)
		assert.Equal(t, runtimeapi.ContainerState_CONTAINER_EXITED, p.status(t, id).State)
		_, err = c.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id})
		require.NoError(t, err)
		assert.Empty(t, s.containers(t))

		_, err = c.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.id})
		require.NoError(t, err)
		assert.Equal(t, runtimeapi.PodSandboxState_SANDBOX_NOTREADY, s.pods(t)[p.back(t)].State)
		_, err = c.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.id})
		require.NoError(t, err)
		assert.Empty(t, s.pods(t))
	})
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

func TestExecSyncCarriesOutputAndExitCode(t *testing.T) {
	each(t, func(t *testing.T, b *bench, s *side, c client) {
		p := run(t, c, s, "exec")
		id := p.start(t)
		assert.Equal(t, "testbed/app:1\n", p.exec(t, id, "app", "file", "/etc/image"))
		resp, err := c.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{
			ContainerId: id, Timeout: 20,
			Cmd: []string{"app", "print", "to stdout", "then", "warn", "to stderr", "then", "exit", "7"},
		})
		require.NoError(t, err)
		assert.Equal(t, "to stdout\n", string(resp.Stdout))
		assert.Equal(t, "to stderr\n", string(resp.Stderr))
		assert.EqualValues(t, 7, resp.ExitCode)

		_, err = c.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Timeout: 1, Cmd: []string{"app", "sleep"}})
		assert.Equal(t, codes.DeadlineExceeded, status.Code(err), "the runtime's own time-out, since the call has none: %v", err)
	})
}
