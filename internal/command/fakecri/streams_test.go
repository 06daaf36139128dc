package fakecri_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/moby/spdystream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/command/fakecri"
)

// startStreams is start for a runtime that also serves streams.
func startStreams(t *testing.T) *client {
	c := start(t, fakecri.Config{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.rt.ServeStreams(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-ended)
	})
	// The first URL on that address shows that the runtime serves streams.
	_, id := c.running("first")
	for {
		reply, err := c.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: id, Stdout: true})
		require.NoError(t, err)
		if u, err := url.Parse(reply.GetUrl()); err == nil && u.Host == l.Addr().String() {
			return c
		}
	}
}

// open opens a URL as crictl does, and the given types of streams. It returns them by type.
func open(t *testing.T, at, protocol string, kinds ...string) map[string]*spdystream.Stream {
	t.Helper()
	u, err := url.Parse(at)
	require.NoError(t, err)
	raw, err := net.Dial("tcp", u.Host)
	require.NoError(t, err)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, at, nil)
	require.NoError(t, err)
	request.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"SPDY/3.1"}, "X-Stream-Protocol-Version": {protocol}}
	require.NoError(t, request.Write(raw))
	reply, err := http.ReadResponse(bufio.NewReader(raw), request)
	require.NoError(t, err)
	require.Equal(t, http.StatusSwitchingProtocols, reply.StatusCode)
	conn, err := spdystream.NewConnection(raw, false)
	require.NoError(t, err)
	go conn.Serve(spdystream.NoOpStreamHandler)
	t.Cleanup(func() { raw.Close() })
	streams := map[string]*spdystream.Stream{}
	for _, kind := range kinds {
		s, err := conn.CreateStream(http.Header{"Streamtype": {kind}, "Port": {"80"}, "Requestid": {"0"}}, nil, false)
		require.NoError(t, err)
		require.NoError(t, s.Wait())
		streams[kind] = s
	}
	return streams
}

// outcome reads the exit status of a command.
func outcome(t *testing.T, s *spdystream.Stream) (got struct {
	Status, Reason string
	Details        struct{ Causes []struct{ Message string } }
}) {
	t.Helper()
	require.NoError(t, json.NewDecoder(s).Decode(&got))
	return got
}

func TestExecStreamsInputOutputAndExitCode(t *testing.T) {
	c := startStreams(t)
	_, id := c.running("web")
	reply, err := c.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: id, Cmd: []string{"sh"}, Stdin: true, Stdout: true, Stderr: true})
	require.NoError(t, err)
	s := open(t, reply.GetUrl(), "v4.channel.k8s.io", "error", "stdin", "stdout", "stderr")
	_, err = io.WriteString(s["stdin"], "hostname\necho oops >&2\nexit 3\n")
	require.NoError(t, err)
	out, err := io.ReadAll(s["stdout"])
	require.NoError(t, err)
	assert.Equal(t, "web\n", string(out))
	failed, err := io.ReadAll(s["stderr"])
	require.NoError(t, err)
	assert.Equal(t, "oops\n", string(failed))
	got := outcome(t, s["error"])
	assert.Equal(t, "NonZeroExitCode", got.Reason)
	assert.Equal(t, "3", got.Details.Causes[0].Message)

	again, err := http.Post(reply.GetUrl(), "", nil)
	require.NoError(t, err)
	again.Body.Close() //nolint:errcheck // nothing is in it
	assert.Equal(t, http.StatusNotFound, again.StatusCode, "a URL is good once")
}

func TestExecEndsWithItsContainer(t *testing.T) {
	c := startStreams(t)
	_, id := c.running("web")
	reply, err := c.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: id, Cmd: []string{"cat"}, Stdin: true, Stdout: true})
	require.NoError(t, err)
	s := open(t, reply.GetUrl(), "v4.channel.k8s.io", "error", "stdin", "stdout")
	require.NoError(t, c.rt.Exit(id, 0))
	assert.Equal(t, "137", outcome(t, s["error"]).Details.Causes[0].Message)
}

func TestContainersPrintToLogsAndClients(t *testing.T) {
	c := startStreams(t)
	logs := t.TempDir()
	c.pull("busybox")
	config := podConfig("web")
	config.LogDirectory = logs
	pod, err := c.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: config})
	require.NoError(t, err)
	created, err := c.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{
		PodSandboxId: pod.GetPodSandboxId(), Config: containerConfig("main", "busybox"), SandboxConfig: config,
	})
	require.NoError(t, err)
	id := c.begin(created.GetContainerId())
	reply, err := c.Attach(t.Context(), &runtimeapi.AttachRequest{ContainerId: id, Stdin: true, Stdout: true})
	require.NoError(t, err)
	s := open(t, reply.GetUrl(), "v4.channel.k8s.io", "error", "stdin", "stdout")
	_, err = io.WriteString(s["stdin"], "typed\n") // comes back when the client is attached
	require.NoError(t, err)
	seen := bufio.NewScanner(s["stdout"])
	require.True(t, seen.Scan())
	assert.Equal(t, "typed", seen.Text())
	c.rt.Print("tick")
	require.True(t, seen.Scan())
	assert.Equal(t, "tick", seen.Text())
	log, err := os.ReadFile(filepath.Join(logs, "main/0.log"))
	require.NoError(t, err)
	assert.Regexp(t, `^\S+ stdout F typed\n\S+ stdout F tick\n$`, string(log))
	require.NoError(t, c.rt.Exit(id, 0))
	assert.Equal(t, "Success", outcome(t, s["error"]).Status)
}

func TestPortsOfPodsAnswerHTTP(t *testing.T) {
	c := startStreams(t)
	pod, _ := c.running("web")
	reply, err := c.PortForward(t.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: pod, Port: []int32{80}})
	require.NoError(t, err)
	s := open(t, reply.GetUrl(), "portforward.k8s.io", "error", "data")
	_, err = io.WriteString(s["data"], "GET / HTTP/1.1\r\nHost: web\r\n\r\n")
	require.NoError(t, err)
	got, err := http.ReadResponse(bufio.NewReader(s["data"]), nil)
	require.NoError(t, err)
	body, err := io.ReadAll(got.Body)
	require.NoError(t, err)
	assert.Equal(t, "hello from web, port 80\n", string(body))
}
