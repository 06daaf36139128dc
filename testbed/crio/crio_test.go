package crio

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

func TestMain(m *testing.M) {
	testbed.Main(m, append(build.ForContainers(), build.CRIO, build.Kubelet)...)
}

// get asks for a page over HTTP at a unix socket.
func get(t *testing.T, socket, path string) (int, string) {
	t.Helper()
	client := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	resp, err := client.Get("http://localhost" + path)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(body)
}

// Pods run on CRI-O and on containerd, whichever is the primary, and what CRI-O says over HTTP is said through criproxy where
// CRI-O is the primary: kubelet and cAdvisor ask for figures so.
func TestCRIOAndContainerdBehindOneSocket(t *testing.T) {
	reg := testbed.NewRegistry(t)
	crio := testbed.NewCRIO(t, reg, runtimes.CRIOConfig{})
	containerd := testbed.NewContainerd(t, reg, runtimes.Config{})
	for _, test := range []struct {
		name            string
		primary, second string
	}{
		{"CRI-O is the primary", crio.Socket(), containerd.Socket()},
		{"CRI-O is the second", containerd.Socket(), crio.Socket()},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := testbed.NewProxy(t, fmt.Sprintf("backends:\n- address: %s\n- {name: two.test, address: %s}\n", test.primary, test.second))
			runtime, images := testbed.NewClients(t, p.Endpoint())
			ids := map[string]bool{}
			for target, image := range map[string]string{"": reg.Image("testbed/app:1"), "two.test": "two.test/" + reg.Image("testbed/app:1")} {
				pod := containerd.PodConfig("web") // its folder and cgroup work for both
				pod.Metadata.Name += target
				if target != "" {
					pod.Annotations["kubernetes.io/target-runtime"] = target
				}
				_, err := images.PullImage(t.Context(), &runtimeapi.ImageSpec{Image: image}, nil, pod)
				require.NoError(t, err)
				podID, err := runtime.RunPodSandbox(t.Context(), pod, "")
				require.NoError(t, err)
				defer runtime.RemovePodSandbox(context.Background(), podID)
				defer runtime.StopPodSandbox(context.Background(), podID)
				require.NoError(t, os.MkdirAll(filepath.Join(pod.LogDirectory, "app"), 0o755)) // as kubelet does
				config := runtimes.ContainerConfig("app", image)
				config.Image.UserSpecifiedImage = image // as kubelet does; CRI-O looks its policy up by that
				id, err := runtime.CreateContainer(t.Context(), podID, config, pod)
				require.NoError(t, err)
				require.NoError(t, runtime.StartContainer(t.Context(), id))
				out, _, err := runtime.ExecSync(t.Context(), id, []string{"/bin/app", "file", "/etc/image"}, 20*time.Second)
				require.NoError(t, err)
				assert.Equal(t, "testbed/app:1\n", string(out))
				ids[id] = true
			}
			list, err := runtime.ListContainers(t.Context(), nil)
			require.NoError(t, err)
			for _, c := range list {
				delete(ids, c.Id)
			}
			assert.Empty(t, ids, "both are listed")

			if test.primary != crio.Socket() {
				return
			}
			code, direct := get(t, crio.Socket(), "/info")
			require.Equal(t, http.StatusOK, code)
			code, through := get(t, p.Socket(), "/info")
			assert.Equal(t, http.StatusOK, code)
			assert.Equal(t, direct, through)
		})
	}
}
