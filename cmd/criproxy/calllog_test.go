package main

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/testing/testkit"
)

func TestTheLogHasARecordOfEachCallOfItsLevel(t *testing.T) {
	for level, want := range map[string]map[string]int{
		"1": {"StopContainer": 0, "RunPodSandbox": 0, "Version": 0, "ListPodSandbox": 0},
		"2": {"StopContainer": 1, "RunPodSandbox": 0, "Version": 0, "ListPodSandbox": 0},
		"3": {"StopContainer": 1, "RunPodSandbox": 1, "Version": 0, "ListPodSandbox": 0},
		"4": {"StopContainer": 1, "RunPodSandbox": 1, "Version": 1, "ListPodSandbox": 0},
		"5": {"StopContainer": 1, "RunPodSandbox": 1, "Version": 1, "ListPodSandbox": 1},
	} {
		t.Run("level "+level, func(t *testing.T) {
			t.Parallel()
			p := newProcess(t)
			p.args = []string{"-v", level}
			p.runtimes[0].When(testkit.Failing(status.Error(codes.Internal, "it broke"), "StopContainer"))
			cmd := p.launch()
			cc := runtimeapi.NewRuntimeServiceClient(p.connect(p.front))
			_, err := cc.Version(t.Context(), &runtimeapi.VersionRequest{})
			require.NoError(t, err)
			_, err = cc.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: testkit.PodConfig("web")})
			require.NoError(t, err)
			_, err = cc.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
			require.NoError(t, err)
			_, err = cc.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: "7f"})
			require.Error(t, err)
			if level == "5" { // whose log shows the end of the call
				watching, leave := context.WithTimeout(t.Context(), testkit.Patience)
				_, err = cc.GetContainerEvents(watching, &runtimeapi.GetEventsRequest{})
				require.NoError(t, err)
				leave()
				testkit.Eventually(t, "the log has its end", func() bool { return p.logged("the client ended the call") > 0 })
			}
			p.end()
			assert.Zero(t, ended(t, cmd)) // it has written the rest of the log
			assert.Equal(t, want["StopContainer"], p.logged("Call failed"), "a client that goes is no failure")
			for method, n := range want {
				assert.Equal(t, n, p.logged(`method="/runtime.v1.RuntimeService/`+method+`"`), method)
			}
			assert.Equal(t, want["StopContainer"], p.logged("it broke"))
			assert.Equal(t, want["RunPodSandbox"], p.logged(`request="config {metadata {name: \"web\"`), "readable")
		})
	}
}

// If replies come faster than a small recorder can keep them, the log lacks some and says why.
func TestTheLogSaysThatTheRecorderIsTooSmall(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.args = []string{"-v", "5", "-flight-recorder", "65536"}
	p.launch()
	client := runtimeapi.NewRuntimeServiceClient(p.connect(p.front))
	for i := range 10 {
		cfg := testkit.PodConfig(fmt.Sprint("web", i))
		cfg.Annotations = map[string]string{"much": strings.Repeat("x", 4000)}
		_, err := client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: cfg})
		require.NoError(t, err)
	}
	stop := p.hammer()
	testkit.Eventually(t, "it is said", func() bool { return p.logged("the flight recorder is too small") > 0 })
	stop()
	assert.Positive(t, p.logged("-flight-recorder"))
}
