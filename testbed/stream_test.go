package testbed_test

import (
	"bytes"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/util/exec"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestExecByURLCarriesBytesAndExitCode(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench) {
		_, _, id := b.run(t, "exec")
		for name, use := range map[string]struct {
			connect func(u *url.URL) (remotecommand.Executor, error)
			command []string
			stdin   io.Reader
			want    string
		}{
			"SPDY": {
				connect: func(u *url.URL) (remotecommand.Executor, error) {
					return remotecommand.NewSPDYExecutor(&rest.Config{}, http.MethodPost, u)
				},
				command: []string{"app", "cat"}, stdin: strings.NewReader("to and fro"), want: "to and fro",
			},
			// A runtime speaks v4 of the WebSocket protocol, which cannot close standard input: v5 is the
			// API server's.
			"WebSocket": {
				connect: func(u *url.URL) (remotecommand.Executor, error) {
					return remotecommand.NewWebSocketExecutorForProtocols(&rest.Config{}, http.MethodGet, u.String(), "v4.channel.k8s.io")
				},
				command: []string{"app", "print", "fro"}, want: "fro\n",
			},
		} {
			t.Run(name, func(t *testing.T) {
				resp, err := b.runtime.Exec(t.Context(), &runtimeapi.ExecRequest{
					ContainerId: id, Cmd: append(use.command, "then", "warn", "done", "then", "exit", "7"),
					Stdin: use.stdin != nil, Stdout: true, Stderr: true,
				})
				require.NoError(t, err)
				address, err := url.Parse(resp.Url)
				require.NoError(t, err)
				assert.Equal(t, "127.0.0.1", address.Hostname())
				executor, err := use.connect(address)
				require.NoError(t, err)
				var stdout, stderr bytes.Buffer
				err = executor.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: use.stdin, Stdout: &stdout, Stderr: &stderr})
				var exit exec.CodeExitError
				require.ErrorAs(t, err, &exit)
				assert.Equal(t, 7, exit.Code)
				assert.Equal(t, use.want, stdout.String())
				assert.Equal(t, "done\n", stderr.String())
			})
		}
	})
}

func TestAttachReachesTheFirstProcess(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench) {
		pod := b.PodConfig("attach")
		podID := b.pod(t, pod, "")
		config := containerReading(b)
		id := b.container(t, podID, pod, config)
		resp, err := b.runtime.Attach(t.Context(), &runtimeapi.AttachRequest{ContainerId: id, Stdin: true, Stdout: true, Stderr: true})
		require.NoError(t, err)
		address, err := url.Parse(resp.Url)
		require.NoError(t, err)
		executor, err := remotecommand.NewSPDYExecutor(&rest.Config{}, http.MethodPost, address)
		require.NoError(t, err)
		var stdout bytes.Buffer
		// StdinOnce: when we are through, so is the container's standard input, and cat ends.
		require.NoError(t, executor.StreamWithContext(t.Context(), remotecommand.StreamOptions{
			Stdin: strings.NewReader("knock knock\n"), Stdout: &stdout, Stderr: io.Discard,
		}))
		assert.Equal(t, "knock knock\n", stdout.String())
		assert.Contains(t, b.log(t, pod, "app", "knock"), "stdout F knock knock\n")
	})
}

func TestPortForwardReachesThePod(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench) {
		pod, podID, _ := b.run(t, "web", "serve", "8080")
		b.log(t, pod, "app", "serving") // the first refusal would end the forwarding
		resp, err := b.runtime.PortForward(t.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: podID, Port: []int32{8080}})
		require.NoError(t, err)
		address, err := url.Parse(resp.Url)
		require.NoError(t, err)
		transport, upgrader, err := spdy.RoundTripperFor(&rest.Config{})
		require.NoError(t, err)
		dialer := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, address)
		stop, ready := make(chan struct{}), make(chan struct{})
		forwarder, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{"0:8080"}, stop, ready, io.Discard, io.Discard)
		require.NoError(t, err)
		ended := make(chan error, 1)
		go func() { ended <- forwarder.ForwardPorts() }()
		defer func() {
			close(stop)
			assert.NoError(t, <-ended)
		}()
		select {
		case <-ready:
		case err := <-ended:
			ended <- err
			require.NoError(t, err)
		}
		ports, err := forwarder.GetPorts()
		require.NoError(t, err)
		local := url.URL{Scheme: "http", Host: hostPort("127.0.0.1", ports[0].Local), Path: "/through"}
		var body []byte
		require.Eventually(t, func() bool {
			resp, err := http.Get(local.String())
			if err != nil {
				return false
			}
			defer resp.Body.Close()
			body, _ = io.ReadAll(resp.Body)
			return true
		}, 10*time.Second, 50*time.Millisecond)
		assert.Equal(t, "GET /through\n", string(body))
	})
}
