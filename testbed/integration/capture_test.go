package integration

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/untested"
	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// serving starts a command of criproxy that serves a socket, until the test ends. The function
// that it returns ends the command earlier, and returns its output.
func serving(t testing.TB, socket string, args ...string) (stop func() string) {
	t.Helper()
	cmd := exec.Command(criproxy(t), args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	require.NoError(t, cmd.Start())
	stop = sync.OnceValue(func() string {
		assert.NoError(t, cmd.Process.Signal(os.Interrupt))
		assert.NoError(t, cmd.Wait(), "%v", args)
		assert.NotContains(t, out.String(), "DATA RACE")
		return out.String()
	})
	t.Cleanup(func() { stop() })
	eventually(t, func() error {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			conn.Close()
		}
		return err
	})
	return stop
}

// crictlSession runs crictl on a socket through a pod's whole life, and returns the output of
// each command.
func crictlSession(t testing.TB, socket, pod, container, image string) (printed []string) {
	t.Helper()
	crictl := func(args ...string) string {
		t.Helper()
		all := append([]string{"--runtime-endpoint", "unix://" + socket, "--image-endpoint", "unix://" + socket, "--timeout", "30s"}, args...)
		r := command(t, testbed.Require(t, build.Crictl).Crictl, all...)
		printed = append(printed, fmt.Sprintf("%s: %d\n%s", args[0], r.code, r.stdout))
		return strings.TrimSpace(r.stdout)
	}
	crictl("version")
	crictl("pull", image)
	crictl("images", "--no-trunc", "-q")
	podID := crictl("runp", pod)
	id := crictl("create", podID, container, pod)
	crictl("start", id)
	crictl("ps", "-q", "--no-trunc")
	crictl("pods", "-q", "--no-trunc")
	crictl("inspect", "-o", "json", short(id))
	crictl("inspectp", "-o", "json", podID)
	crictl("exec", "-s", id, "app", "file", "/etc/image")
	crictl("inspect", "0123456789abcdef") // does not exist
	crictl("stop", id)
	crictl("ps", "-aq", "--no-trunc")
	crictl("rm", id)
	crictl("stopp", podID)
	crictl("rmp", podID)
	crictl("rmi", image)
	crictl("ps", "-aq")
	return printed
}

// A message is a message that one observer has seen.
type message struct {
	way, method, payload string
	redacted             bool
}

// recordedMessages returns the messages of a capture, on the clients' legs or on the runtime's.
func recordedMessages(t testing.TB, path string, client bool) (all []message) {
	t.Helper()
	r, err := capture.Open(path)
	require.NoError(t, err)
	defer r.Close()
	for {
		var ev capture.Event
		err := r.Next(&ev)
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		require.False(t, ev.Truncated)
		if (ev.Leg == 0) == client && (ev.Kind == capture.Request || ev.Kind == capture.Reply) {
			all = append(all, message{ev.Kind.String(), ev.Method, string(ev.Payload), ev.Redacted})
		}
	}
}

// is reports whether a recorded message equals the one on the wire, except for stars.
func (m message) is(wire message) bool {
	if m.way != wire.way || m.method != wire.method || len(m.payload) != len(wire.payload) {
		return false
	}
	for i := range len(m.payload) {
		if m.payload[i] != wire.payload[i] && !(m.redacted && m.payload[i] == '*') {
			return false
		}
	}
	return true
}

func TestASessionOfCrictlIsCapturedAndPlayedAgain(t *testing.T) {
	b := start(t)
	s := b.two
	dir := folder(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	wire := newRelay(t, s.Socket(), nil)
	stopTap := serving(t, at("tap.sock"), "tap", "-connect", wire.socket, "-listen", at("tap.sock"), "-capture", at("calls.jsonl"), "-full")

	write := func(name string, message any) string {
		data, err := json.Marshal(message)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(at(name), data, 0o600))
		return at(name)
	}
	sandbox := s.PodConfig("captured")
	app := runtimes.ContainerConfig("app", s.app(), "print", "hello", "then", "sleep")
	pod, container := write("pod.json", sandbox), write("container.json", app)
	b.forget(t, s.Socket(), "testbed/app:1")
	want := crictlSession(t, at("tap.sock"), pod, container, s.app())
	require.Contains(t, strings.Join(want, ""), "testbed/app:1")
	shown := stopTap()
	assert.Contains(t, shown, "testbed/captured/app")
	assert.NotContains(t, strings.ToLower(shown), "missing")

	// Every message equals the one on the wire, except for secrets.
	var passed []message
	for _, call := range wire.calls {
		if strings.HasPrefix(call.method, "/grpc.reflection.") {
			continue // tap asks for names before any call
		}
		requests, answer := call.said()
		for _, m := range requests {
			passed = append(passed, message{way: "request", method: call.method, payload: m})
		}
		for _, m := range answer.replies {
			passed = append(passed, message{way: "reply", method: call.method, payload: m})
		}
	}
	require.Greater(t, len(passed), 60)
	for _, client := range []bool{false, true} { // tap changes nothing
		recorded := recordedMessages(t, at("calls.jsonl"), client)
		assert.Len(t, recorded, len(passed))
		left, hidden := slices.Clone(passed), map[string]bool{}
		for _, m := range recorded {
			i := slices.IndexFunc(left, m.is)
			if assert.GreaterOrEqual(t, i, 0, "%s of %s was never on the wire", m.way, m.method) {
				left = slices.Delete(left, i, i+1)
			}
			if m.redacted {
				hidden[m.way+" "+m.method] = true
			}
		}
		assert.Empty(t, left)
		assert.Equal(t, map[string]bool{"reply " + rt("ContainerStatus"): true, "reply " + rt("PodSandboxStatus"): true, "reply " + rt("ExecSync"): true}, hidden)
	}

	r := command(t, criproxy(t), "convert", at("calls.jsonl"), at("calls.pcapng"))
	require.Zero(t, r.code, r.stderr)
	t.Run("Wireshark reads it", func(t *testing.T) { wiresharkReads(t, dir, s.app()) })

	t.Run("a fixture answers the same session again", func(t *testing.T) {
		stop := serving(t, at("fixture.sock"), "fixture", at("calls.jsonl"), "-listen", at("fixture.sock"))
		got := crictlSession(t, at("fixture.sock"), pod, container, s.app())
		for i := range want {
			switch {
			case strings.HasPrefix(want[i], "exec: "): // its output is secret
				assert.Equal(t, "exec: 0\n**************", strings.TrimSpace(got[i]))
			case strings.HasPrefix(want[i], "inspect"): // so is the verbose information
				assert.Equal(t, statusPart(t, want[i]), statusPart(t, got[i]))
			default:
				assert.Equal(t, want[i], got[i])
			}
		}
		said := stop()
		assert.Contains(t, said, " 0 by sequence, 0 not recorded; recorded and not made: 0 calls\n")
	})

	t.Run("a replay on a fresh runtime differs in nothing", func(t *testing.T) {
		fresh := testbed.NewContainerd(t, b.reg, runtimes.Config{Version: "2.4"})
		r := command(t, criproxy(t), "replay", at("calls.jsonl"), "-to", fresh.Socket(), "-speed", "0", "-write", "-failed", "-o", "json")
		lines := 0
		for line := range strings.Lines(r.stdout) {
			var call struct {
				NotSent string `json:"not_sent"`
				Changes []struct{ Path string }
			}
			require.NoError(t, json.Unmarshal([]byte(line), &call))
			lines++
			assert.Empty(t, call.NotSent)
			for _, c := range call.Changes { // the only difference that we chose: its folder
				assert.Regexp(t, `^image_filesystems\[\d\]\.fs_id\.mountpoint$`, c.Path, line)
			}
		}
		assert.Greater(t, lines, 40)
		pods, err := fresh.Runtime(t.Context())
		require.NoError(t, err)
		left, err := pods.ListPodSandbox(t.Context(), nil)
		require.NoError(t, err)
		assert.Empty(t, left)
	})
}

// statusPart returns the part of crictl inspect's output that CRI specifies.
func statusPart(t testing.TB, printed string) any {
	t.Helper()
	head, object, _ := strings.Cut(printed, "\n")
	if object == "" {
		return head
	}
	all := map[string]any{}
	require.NoError(t, json.Unmarshal([]byte(object), &all), printed)
	require.NotEmpty(t, all["status"])
	return all["status"]
}

// wiresharkReads asserts that tshark opens dir/calls.pcapng with no settings, and with our
// profile filters by the fields of messages.
func wiresharkReads(t *testing.T, dir, image string) {
	program, err := exec.LookPath("tshark")
	if err != nil {
		untested.Skip(t, "whether Wireshark opens a capture of containerd: apt-get install tshark")
	}
	tshark := func(args ...string) string {
		t.Helper()
		cmd := host.Command(t.Context(), program, append([]string{"-r", filepath.Join(dir, "calls.pcapng")}, args...)...)
		cmd.Env = append(os.Environ(), "HOME="+dir, "WIRESHARK_CONFIG_DIR="+filepath.Join(dir, "wireshark"))
		var errOut bytes.Buffer
		cmd.Stderr = &errOut
		out, err := cmd.Output()
		require.NoError(t, err, errOut.String())
		return string(out)
	}
	calls := strings.Fields(tshark("-Y", "http2.headers.path", "-T", "fields", "-e", "http2.headers.path"))
	for _, method := range []string{rt("RunPodSandbox"), rt("CreateContainer"), rt("ExecSync"), img("PullImage")} {
		assert.Len(t, slices.DeleteFunc(slices.Clone(calls), func(one string) bool { return one != method }), 2, "%s, on each leg", method)
	}
	assert.Empty(t, tshark("-Y", "_ws.malformed || tcp.analysis.flags"))
	r := command(t, criproxy(t), "wireshark-profile", filepath.Join(dir, "wireshark", "profiles", "criproxy"))
	require.Zero(t, r.code, r.stderr)
	found := tshark("-C", "criproxy", "-Y", fmt.Sprintf("pbf.runtime.v1.ImageSpec.image == %q", image))
	assert.Contains(t, found, "PullImageRequest")
	assert.Contains(t, found, "CreateContainerRequest")
}
