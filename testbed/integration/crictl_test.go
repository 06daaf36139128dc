package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

func TestCrictlWorksOnBothRuntimes(t *testing.T) {
	b := start(t)
	dir := t.TempDir()
	config := filepath.Join(dir, "crictl.yaml")
	settings := fmt.Sprintf("runtime-endpoint: unix://%s\nimage-endpoint: unix://%[1]s\ntimeout: 30\n", b.proxy.Socket())
	require.NoError(t, os.WriteFile(config, []byte(settings), 0o600))
	crictl := func(args ...string) string {
		t.Helper()
		r := command(t, testbed.Require(t, build.Crictl).Crictl, append([]string{"--config", config}, args...)...)
		require.Zero(t, r.code, "crictl %s: %s%s", strings.Join(args, " "), r.stdout, r.stderr)
		return r.stdout
	}

	assert.Regexp(t, `(?s)Version:\s+0\.1\.0\nRuntimeName:\s+containerd\nRuntimeVersion:\s+v1\.7\.\S+\nRuntimeApiVersion:\s+v1\n`, crictl("version"))
	var info struct {
		Status struct{ Conditions []struct{ Type string } }
	}
	require.NoError(t, json.Unmarshal([]byte(crictl("info")), &info))
	assert.NotEmpty(t, info.Status.Conditions)

	for _, s := range b.sides() {
		t.Run(s.Containerd.Version, func(t *testing.T) {
			b.forget(t, b.proxy.Socket(), "testbed/app:1")
			write := func(name string, message any) string {
				data, err := json.Marshal(message)
				require.NoError(t, err)
				file := filepath.Join(dir, name+"-"+s.Containerd.Version+".json")
				require.NoError(t, os.WriteFile(file, data, 0o600))
				return file
			}
			image := s.image(s.app())
			sandbox := s.choose(s.PodConfig("crictl"))
			pod := write("pod", sandbox)
			app := runtimes.ContainerConfig("app", image, "print", "hello", "then", "sleep")
			for key, value := range sandbox.Labels {
				app.Labels[key] = value // as kubelet does it
			}
			container := write("container", app)

			crictl("pull", image)
			require.NotNil(t, s.has(t, s.app()))
			require.Nil(t, b.other(s).has(t, s.app()))
			assert.Contains(t, strings.Fields(crictl("images", "-q", "--no-trunc")), s.image(s.has(t, s.app()).Id))
			assert.Contains(t, crictl("images"), s.image(s.reg.Image("testbed/app")))
			assert.Contains(t, crictl("inspecti", image), s.image(s.reg.Image("testbed/app@sha256:")))

			podID := strings.TrimSpace(crictl("runp", pod))
			require.Contains(t, s.pods(t), s.bare(t, podID))
			id := strings.TrimSpace(crictl("create", podID, container, pod))
			require.Contains(t, s.containers(t), s.bare(t, id))
			crictl("start", id)
			assert.Equal(t, runtimeapi.ContainerState_CONTAINER_RUNNING, s.containers(t)[s.bare(t, id)].State)

			assert.Equal(t, podID+"\n", crictl("pods", "-q", "--no-trunc", "--name", "crictl"))
			assert.Equal(t, id+"\n", crictl("ps", "-q", "--no-trunc"))
			assert.Equal(t, id+"\n", crictl("ps", "-q", "--no-trunc", "--pod", podID))
			assert.Contains(t, crictl("ps"), id[:13])
			assert.Contains(t, crictl("pods"), podID[:13])
			var inspected struct {
				Status struct{ ID string }
			}
			require.NoError(t, json.Unmarshal([]byte(crictl("inspect", id)), &inspected))
			assert.Equal(t, id, inspected.Status.ID)
			require.NoError(t, json.Unmarshal([]byte(crictl("inspectp", podID)), &inspected))
			assert.Equal(t, podID, inspected.Status.ID)
			require.NoError(t, json.Unmarshal([]byte(crictl("inspect", short(id))), &inspected))
			assert.Equal(t, id, inspected.Status.ID, "by its beginning")

			assert.Equal(t, "testbed/app:1", strings.TrimSpace(crictl("exec", "-s", id, "app", "file", "/etc/image")))
			assert.Equal(t, "testbed/app:1\n", crictl("exec", id, "app", "file", "/etc/image"))
			eventually(t, func() error {
				if log := crictl("logs", id); log != "hello\n" {
					return fmt.Errorf("the log is %q", log)
				}
				return nil
			})
			assert.Contains(t, crictl("stats", "-o", "json", id), id)
			assert.Contains(t, crictl("statsp", "-o", "json", "--id", podID), podID)

			crictl("stop", id)
			assert.Equal(t, runtimeapi.ContainerState_CONTAINER_EXITED, s.containers(t)[s.bare(t, id)].State)
			assert.Empty(t, crictl("ps", "-q"))
			assert.Equal(t, id+"\n", crictl("ps", "-aq", "--no-trunc"))
			crictl("rm", id)
			assert.Empty(t, s.containers(t))
			crictl("stopp", podID)
			crictl("rmp", podID)
			assert.Empty(t, s.pods(t))
			crictl("rmi", image)
			assert.Nil(t, s.has(t, s.app()))
		})
	}
}
