package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/bounded"
	"github.com/criproxy/criproxy/internal/testing/untested"
)

// demoCapture returns a file with the calls of the demo.
func demoCapture(t *testing.T) string {
	t.Helper()
	dir := shortDir(t)
	out, _ := launched(t, []string{"TMPDIR=" + dir}, "demo")
	out.waitFor(t, "The demo runs")
	sockets, err := filepath.Glob(filepath.Join(dir, "*", "criproxy.admin.sock"))
	require.NoError(t, err)
	require.Len(t, sockets, 1)
	file := filepath.Join(dir, "a.pcapng")
	require.NoError(t, run(t.Context(), []string{"dump", "-admin", sockets[0], file}, io.Discard, io.Discard))
	return file
}

// messagesOf returns the messages of one of our captures, in order for each leg's interface.
func messagesOf(t *testing.T, path string) (all [][]byte, methods int) {
	t.Helper()
	r, err := capture.Open(path)
	require.NoError(t, err)
	defer r.Close()
	for {
		var ev capture.Event
		err := r.Next(&ev)
		if errors.Is(err, io.EOF) {
			return all, methods
		}
		require.NoError(t, err)
		switch ev.Kind {
		case capture.Start:
			methods++
		case capture.Request, capture.Reply:
			all = append(all, ev.Payload)
		}
	}
}

func texts(all [][]byte) []string {
	s := make([]string, len(all))
	for i, b := range all {
		s[i] = string(b)
	}
	return s
}

// tshark returns the output of tshark. Without tshark the test is skipped.
func tshark(t *testing.T, env []string, args ...string) string {
	t.Helper()
	return wireshark(t, "tshark", env, args...)
}

// wireshark returns the output of a program that belongs to tshark. Without it the test is skipped.
func wireshark(t *testing.T, program string, env []string, args ...string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		untested.Skip(t, "whether Wireshark opens our files: apt-get install tshark")
	}
	cmd := bounded.Command(t, path, args...)
	cmd.Env = append(os.Environ(), env...)
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	require.NoError(t, err, "%s %s: %s", program, strings.Join(args, " "), errOut.String())
	return string(out)
}

func TestWiresharkOpensThePcapngWithNoSettings(t *testing.T) {
	untested.TakesLong(t)
	t.Parallel()
	file := demoCapture(t)
	_, starts := messagesOf(t, file)
	home := []string{"HOME=" + t.TempDir()}
	calls := strings.Fields(tshark(t, home, "-r", file, "-Y", "http2.headers.path", "-T", "fields", "-e", "http2.headers.path"))
	assert.Len(t, calls, starts)
	assert.Contains(t, calls, "/runtime.v1.RuntimeService/RunPodSandbox")
	assert.NotEmpty(t, tshark(t, home, "-r", file, "-Y", "grpc.message_length > 0"))
	assert.Empty(t, tshark(t, home, "-r", file, "-Y", "_ws.malformed || tcp.analysis.flags || tcp.checksum.status == Bad || ip.checksum.status == Bad", "-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE"))
	status := tshark(t, home, "-r", file, "-Y", `ip.src == 192.0.2.1 && http2.header.name == "grpc-status" && http2.header.value == "5"`) // only replies to the client what has just gone
	assert.Equal(t, 1, strings.Count(status, "\n"), "NotFound: %s", status)
	assert.NotEmpty(t, tshark(t, home, "-r", file, "-Y", `frame.comment contains "backend=\"beta.io\""`))
	assert.NotEmpty(t, tshark(t, home, "-r", file, "-Y", `frame.interface_name contains "beta.io"`))
	assert.NotEmpty(t, tshark(t, home, "-r", file, "-Y", `frame.comment contains "rewrite container_id:"`))
}

func TestWiresharkFiltersByFieldsWithOurProfile(t *testing.T) {
	untested.TakesLong(t)
	t.Parallel()
	file := demoCapture(t)
	config := t.TempDir()
	require.NoError(t, run(t.Context(), []string{"wireshark-profile", filepath.Join(config, "profiles", "criproxy")}, io.Discard, io.Discard))
	env := []string{"WIRESHARK_CONFIG_DIR=" + config}
	found := tshark(t, env, "-C", "criproxy", "-r", file, "-Y", `pbf.runtime.v1.ImageSpec.image == "images/cirros:1"`)
	assert.Contains(t, found, "runtime.v1.PullImageRequest")
	assert.Contains(t, tshark(t, env, "-C", "criproxy", "-r", file, "-Y", `pbf.runtime.v1.PodSandboxMetadata.name == "vm"`), "RunPodSandbox")
	assert.Empty(t, tshark(t, env, "-C", "criproxy", "-r", file, "-Y", `pbf.runtime.v1.ImageSpec.image == "nothing"`))
}

// A change is a block of its own, which is no packet. editcap, and with it Wireshark when it saves, refused the file: it had
// the names of hosts before the interfaces.
func TestWiresharkSkipsAConditionsBlock(t *testing.T) {
	untested.TakesLong(t)
	t.Parallel()
	p := startedProcess(t)
	p.runPod("web", "beta.io")
	p.restartRuntime(true, false)
	p.restartRuntime(false, true)
	file := filepath.Join(p.dir, "calls.pcapng")
	p.says("dump", file)
	var said []string
	r, err := capture.Open(file)
	require.NoError(t, err)
	defer r.Close()
	for ev := (capture.Event{}); r.Next(&ev) == nil; {
		if ev.Kind == capture.Changed {
			said = append(said, ev.Change.String())
		}
	}
	require.Greater(t, len(said), 4, "serves, two runtimes are up, one is gone and up again: %v", said)
	home := []string{"HOME=" + t.TempDir()}
	assert.Empty(t, tshark(t, home, "-r", file, "-Y", "_ws.malformed || tcp.analysis.flags || tcp.checksum.status == Bad", "-o", "tcp.check_checksum:TRUE"))
	assert.Empty(t, tshark(t, home, "-r", file, "-Y", `frame.comment contains "kind=change"`), "it is no packet")

	// As a file of blocks, it is there with its sentence, and well formed.
	blocks := func(args ...string) string {
		t.Helper()
		return tshark(t, home, append([]string{"-r", file, "-X", "read_format:MIME Files Format"}, args...)...)
	}
	assert.Empty(t, blocks("-Y", "_ws.malformed || _ws.expert"))
	comments := blocks("-T", "fields", "-e", "pcapng.options.option.data.comment")
	for _, one := range said {
		assert.Contains(t, comments, one)
	}
	assert.Equal(t, len(said), strings.Count(comments, "kind=change "))

	again := filepath.Join(p.dir, "again.pcapng")
	wireshark(t, "editcap", home, file, again)
	want, _ := messagesOf(t, file)
	got, _ := messagesOf(t, again)
	assert.Equal(t, texts(want), texts(got))
}
