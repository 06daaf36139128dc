package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/server/listen"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// output collects the output of a running command.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// waitFor waits until the output contains all words, and returns it.
func (o *output) waitFor(t *testing.T, words ...string) string {
	t.Helper()
	for deadline := time.Now().Add(testkit.Patience); ; time.Sleep(5 * time.Millisecond) {
		text := o.String()
		missing := ""
		for _, w := range words {
			if !strings.Contains(text, w) {
				missing = w
			}
		}
		if missing == "" {
			return text
		}
		require.True(t, time.Now().Before(deadline), "%q was never printed:\n%s", missing, text)
	}
}

// launched runs criproxy as a separate process until the test ends. ended receives the error with
// which it ends, and env is added to the environment.
func launched(t *testing.T, env []string, args ...string) (out *output, ended chan error) {
	t.Helper()
	cmd, out := exec.Command("criproxy", args...), &output{}
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), env...), out, out
	require.NoError(t, cmd.Start())
	ended = make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		assert.NoError(t, cmd.Process.Signal(os.Interrupt))
		assert.NoError(t, <-ended, "%s", out)
	})
	return out, ended
}

// served launches serve as a process, because serve takes over the logs of its process. It returns
// when socket is served.
func served(t *testing.T, socket string, args ...string) {
	t.Helper()
	_, ended := launched(t, nil, append([]string{"serve"}, args...)...)
	testkit.Eventually(t, "it serves", func() bool { return len(ended) > 0 || testkit.Connects(socket) })
}

// running runs a command until the test ends, and returns its output. It waits until socket is
// served, unless that is empty.
func running(t *testing.T, socket string, args ...string) *output {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	out := &output{}
	done := make(chan error, 1)
	go func() { done <- run(ctx, args, out, out) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-done)
	})
	for socket != "" {
		if testkit.Connects(socket) {
			break
		}
		select {
		case err := <-done:
			done <- err
			require.NoError(t, err, out.String())
		case <-time.After(5 * time.Millisecond):
		}
	}
	return out
}

// shortDir returns a folder for sockets.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tap")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func TestTapShowsAnyAPIAndChangesNothing(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	back := filepath.Join(dir, "back.sock")
	muxtest.Serve(t, back, muxtest.Unary(func(ctx context.Context, method string, request *codec.Frame) (*codec.Frame, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		if len(md["x-key"]) > 0 {
			return nil, status.Error(codes.NotFound, "no such book for "+md["x-key"][0])
		}
		return muxtest.Bytes("Book", `id: "7f" title: "Tale"`), nil
	}))
	call := func(socket string, ctx context.Context) (*codec.Frame, error) {
		reply := &codec.Frame{}
		return reply, testkit.Dialed(t, socket).Invoke(ctx, muxtest.Method("Get"), muxtest.Frame(t, "GetRequest", `book_id: "7f"`), reply)
	}
	for name, one := range map[string]struct {
		args []string
		want []string
	}{
		"named":   {[]string{"-proto", filepath.Join("..", "..", "internal", "testing", "muxtest", "library.proto")}, []string{`book_id: "7f"`, `title: "Tale"`, "backend primary", "no such book for me"}},
		"guessed": {nil, []string{`1: "7f"`, `"Tale"`, "a message that no schema describes"}},
	} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(dir, name+".sock")
			out := running(t, socket, append([]string{"tap", "-connect", back, "-listen", socket, "-full"}, one.args...)...)
			got, err := call(socket, t.Context())
			require.NoError(t, err)
			want, err := call(back, t.Context())
			require.NoError(t, err)
			assert.Equal(t, want.Bytes(), got.Bytes())
			_, err = call(socket, metadata.AppendToOutgoingContext(t.Context(), "x-key", "me"))
			assert.Equal(t, codes.NotFound, status.Code(err))
			out.waitFor(t, append(one.want, "NotFound")...)
		})
	}
}

// Two taps, each of which is the server of the other one, passed a call round and round.
func TestATapRefusesACallThatComesBack(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	one, two := filepath.Join(dir, "one.sock"), filepath.Join(dir, "two.sock")
	running(t, one, "tap", "-connect", two, "-listen", one, "-admin", "none", "-quiet")
	running(t, two, "tap", "-connect", one, "-listen", two, "-admin", "none", "-quiet")
	testkit.Eventually(t, "the call has come back", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		err := testkit.Dialed(t, one).Invoke(ctx, muxtest.Method("Get"), muxtest.Frame(t, "GetRequest", `book_id: "7f"`), &codec.Frame{})
		return status.Code(err) == codes.FailedPrecondition && strings.Contains(err.Error(), "Get came back to the criproxy that passed it on")
	})
}

func TestTapLearnsNamesFromTheServerAndHandsThemOn(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	back, socket, file := filepath.Join(dir, "back.sock"), filepath.Join(dir, "tap.sock"), filepath.Join(dir, "calls.jsonl")
	s := grpc.NewServer()
	healthpb.RegisterHealthServer(s, health.NewServer())
	reflection.Register(s)
	l, err := listen.Unix(back, 0o600, "")
	require.NoError(t, err)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() {
		s.Stop()
		<-served
	})
	out := running(t, filepath.Join(dir, "tap.admin.sock"), "tap", "-connect", back, "-listen", socket, "-full", "-capture", file) // the admin socket comes last
	live := running(t, "", "tail", "-admin", filepath.Join(dir, "tap.admin.sock"), "-past", "-follow", "-full")
	_, err = healthpb.NewHealthClient(testkit.Dialed(t, socket)).Check(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	out.waitFor(t, "HealthCheckResponse", "status: SERVING")
	live.waitFor(t, "HealthCheckResponse", "status: SERVING")
	for {
		var shown bytes.Buffer
		if run(t.Context(), []string{"view", "-full", file}, &shown, &shown) == nil && strings.Contains(shown.String(), "status: SERVING") {
			break
		}
		time.Sleep(10 * time.Millisecond) // criproxy writes the file asynchronously
	}
}
