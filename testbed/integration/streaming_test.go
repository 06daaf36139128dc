package integration

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
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

	"github.com/criproxy/criproxy/testbed/host"
)

// The runtimes serve their streams themselves, and criproxy forwards the URL. These tests show that the URL is the right
// runtime's, and that it works.

func TestExecByURLCarriesBytesAndExitCode(t *testing.T) {
	each(t, func(t *testing.T, b *bench, s *side, c client) {
		p := run(t, c, s, "exec")
		id := p.start(t)
		for name, use := range map[string]struct {
			connect func(u *url.URL) (remotecommand.Executor, error)
			command []string
			stdin   string
			want    string
		}{
			"SPDY": {
				connect: func(u *url.URL) (remotecommand.Executor, error) {
					return remotecommand.NewSPDYExecutor(&rest.Config{}, http.MethodPost, u)
				},
				command: []string{"app", "cat"}, stdin: "\x00\xff to and fro", want: "\x00\xff to and fro",
			},
			// Version 4 of the protocol, which runtimes speak, cannot close standard input.
			"WebSocket": {
				connect: func(u *url.URL) (remotecommand.Executor, error) {
					return remotecommand.NewWebSocketExecutorForProtocols(&rest.Config{}, http.MethodGet, u.String(), "v4.channel.k8s.io")
				},
				command: []string{"app", "file", "/etc/image"}, want: "testbed/app:1\n",
			},
		} {
			t.Run(name, func(t *testing.T) {
				resp, err := c.Exec(t.Context(), &runtimeapi.ExecRequest{
					ContainerId: id, Cmd: append(use.command, "then", "warn", "done", "then", "exit", "7"),
					Stdin: use.stdin != "", Stdout: true, Stderr: true,
				})
				require.NoError(t, err)
				executor, err := use.connect(parse(t, resp.Url))
				require.NoError(t, err)
				var stdout, stderr bytes.Buffer
				options := remotecommand.StreamOptions{Stdout: &stdout, Stderr: &stderr}
				if use.stdin != "" {
					options.Stdin = strings.NewReader(use.stdin)
				}
				ctx, cancel := host.Bounded(t.Context())
				defer cancel()
				err = executor.StreamWithContext(ctx, options)
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
	each(t, func(t *testing.T, b *bench, s *side, c client) {
		p := run(t, c, s, "attach")
		config := p.container("cat")
		config.Stdin, config.StdinOnce = true, true
		id := p.create(t, config)
		_, err := c.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id})
		require.NoError(t, err)
		resp, err := c.Attach(t.Context(), &runtimeapi.AttachRequest{ContainerId: id, Stdin: true, Stdout: true, Stderr: true})
		require.NoError(t, err)
		executor, err := remotecommand.NewSPDYExecutor(&rest.Config{}, http.MethodPost, parse(t, resp.Url))
		require.NoError(t, err)
		var stdout bytes.Buffer
		// StdinOnce: the container's standard input ends with our session, and cat ends.
		ctx, cancel := host.Bounded(t.Context())
		defer cancel()
		require.NoError(t, executor.StreamWithContext(ctx, remotecommand.StreamOptions{
			Stdin: strings.NewReader("knock knock\n"), Stdout: &stdout, Stderr: io.Discard,
		}))
		assert.Equal(t, "knock knock\n", stdout.String())
		assert.Contains(t, p.log(t, "app", "knock"), "stdout F knock knock\n")
	})
}

func TestPortForwardReachesThePod(t *testing.T) {
	each(t, func(t *testing.T, b *bench, s *side, c client) {
		p := run(t, c, s, "web")
		id := p.start(t, "serve", "8080")
		p.log(t, "app", "serving") // the first refusal would end the forwarding
		resp, err := c.PortForward(t.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: p.id, Port: []int32{8080}})
		require.NoError(t, err)
		transport, upgrader, err := spdy.RoundTripperFor(&rest.Config{})
		require.NoError(t, err)
		dialer := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, parse(t, resp.Url))
		stop, ready, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		forwarder, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{"0:8080"}, stop, ready, io.Discard, io.Discard)
		require.NoError(t, err)
		go func() { ended <- forwarder.ForwardPorts() }()
		select {
		case <-ready:
		case err := <-ended:
			require.NoError(t, err, "before it was ready")
		case <-time.After(time.Minute):
			require.Fail(t, "it was not ready after a minute")
		}
		defer func() {
			close(stop)
			assert.NoError(t, <-ended)
		}()
		ports, err := forwarder.GetPorts()
		require.NoError(t, err)
		path := "/through/" + id // only this pod's program echoes this
		var body string
		client := &http.Client{Timeout: 10 * time.Second}
		eventually(t, func() error {
			resp, err := client.Get("http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(int(ports[0].Local))) + path)
			if err == nil {
				body = readAll(resp.Body)
			}
			return err
		})
		assert.Equal(t, "GET "+path+"\n", body)
	})
}

func parse(t testing.TB, address string) *url.URL {
	t.Helper()
	u, err := url.Parse(address)
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1", u.Hostname())
	return u
}
