package fakecri_test

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/fakecri"
)

func TestExecSyncRunsBuiltInCommands(t *testing.T) {
	c := start(t, fakecri.Config{})
	c.pull("busybox")
	pod := c.run("web")
	config := containerConfig("main", "busybox")
	config.Envs = []*runtimeapi.KeyValue{{Key: "COLOUR", Value: []byte("red\xff")}}
	reply, err := c.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: config, SandboxConfig: podConfig("web")})
	require.NoError(t, err)
	id := c.begin(reply.GetContainerId())

	for _, test := range []struct {
		cmd            []string
		stdout, stderr string
		code           int32
	}{
		{[]string{"echo", "hello", "there"}, "hello there\n", "", 0},
		{[]string{"/bin/echo", "-n", "hello"}, "hello", "", 0},
		{[]string{"true"}, "", "", 0},
		{[]string{"false"}, "", "", 1},
		{[]string{"exit", "42"}, "", "", 42},
		{[]string{"sleep", "0"}, "", "", 0},
		{[]string{"sleep", "1ns"}, "", "", 0},
		{[]string{"sleep", "long"}, "", "sleep: invalid time \"long\"\n", 1},
		{[]string{"hostname"}, "web\n", "", 0},
		{[]string{"cat", "/etc/hostname"}, "web\n", "", 0},
		{[]string{"head", "-c", "2", "/etc/hostname"}, "we", "", 0},
		{[]string{"cat", "/etc/shadow"}, "", "/etc/shadow: no such file or directory\n", 1},
		{[]string{"env"}, "PATH=/bin\nHOSTNAME=web\nCOLOUR=red\xff\n", "", 0},
		{[]string{"sh", "-c", "echo out; echo err >&2; exit 3; echo never"}, "out\n", "err\n", 3},
		{[]string{"sh", "-c", "nothing; echo still"}, "still\n", "sh: nothing: not found\n", 0},
	} {
		got, err := c.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: test.cmd})
		require.NoError(t, err, "%v", test.cmd)
		assert.Equal(t, test.stdout, string(got.GetStdout()), "%v", test.cmd)
		assert.Equal(t, test.stderr, string(got.GetStderr()), "%v", test.cmd)
		assert.Equal(t, test.code, got.GetExitCode(), "%v", test.cmd)
	}
	_, err = c.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"nothing"}})
	assertCode(t, codes.Unknown, err)
	assert.ErrorContains(t, err, "executable file not found")
}

func TestExecSyncKeeps16MiBOfOutput(t *testing.T) {
	c := start(t, fakecri.Config{})
	_, id := c.running("web")
	got, err := c.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"head", "-c", "16777217", "/dev/zero"}})
	require.NoError(t, err)
	assert.Len(t, got.GetStdout(), 16<<20)
}

func TestExecSyncHonoursItsTimeout(t *testing.T) {
	c := start(t, fakecri.Config{})
	_, id := c.running("web")
	_, err := c.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"sleep", "1h"}, Timeout: 1})
	assertCode(t, codes.DeadlineExceeded, err)
}

func TestExecSyncEndsWithItsCallerAndItsContainer(t *testing.T) {
	c := start(t, fakecri.Config{})
	_, id := c.running("web")
	begun := make(chan struct{}, 1)
	c.rt.Fault(func(_ context.Context, method string, _ any) error {
		if strings.HasSuffix(method, "/ExecSync") {
			begun <- struct{}{}
		}
		return nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-begun; cancel() }()
	_, err := c.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"sleep", "1h"}})
	assertCode(t, codes.Canceled, err)

	exited := make(chan error, 1)
	go func() { <-begun; exited <- c.rt.Exit(id, 0) }()
	got, err := c.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"sleep", "1h"}})
	require.NoError(t, <-exited)
	if err == nil {
		assert.EqualValues(t, 137, got.GetExitCode())
	} else {
		assertCode(t, codes.Unknown, err) // it had exited before the command began
	}
}

func TestStreamingURLsAreWhatTheConfigSays(t *testing.T) {
	for base, want := range map[string]string{
		"":                 "http://127.0.0.1:10010",
		"/cri":             "/cri",
		"https://[::]:123": "https://[::]:123",
	} {
		c := start(t, fakecri.Config{StreamURL: base})
		pod, id := c.running("web")
		exec, err := c.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: id, Stdout: true})
		require.NoError(t, err)
		assert.Regexp(t, "^"+regexp.QuoteMeta(want)+"/exec/[0-9a-f]{8}$", exec.GetUrl())
		attach, err := c.Attach(t.Context(), &runtimeapi.AttachRequest{ContainerId: id, Stdin: true, Tty: true})
		require.NoError(t, err)
		assert.Regexp(t, "^"+regexp.QuoteMeta(want)+"/attach/[0-9a-f]{8}$", attach.GetUrl())
		forward, err := c.PortForward(t.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: pod, Port: []int32{80}})
		require.NoError(t, err)
		assert.Regexp(t, "^"+regexp.QuoteMeta(want)+"/portforward/[0-9a-f]{8}$", forward.GetUrl())
	}
}

func TestStreamingNeedsWhatRunsAndAStream(t *testing.T) {
	c := start(t, fakecri.Config{})
	pod, id := c.running("web")
	_, err := c.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: id})
	assertCode(t, codes.InvalidArgument, err)
	_, err = c.Attach(t.Context(), &runtimeapi.AttachRequest{ContainerId: id, Stdout: true, Stderr: true, Tty: true})
	assertCode(t, codes.InvalidArgument, err)
	_, err = c.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod})
	require.NoError(t, err)
	_, err = c.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: id, Stdout: true})
	assertCode(t, codes.Unknown, err)
	_, err = c.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"true"}})
	assertCode(t, codes.Unknown, err)
	_, err = c.PortForward(t.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: pod})
	assertCode(t, codes.Unknown, err)
}
