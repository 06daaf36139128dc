package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/fakecri"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/testkit"
	"github.com/criproxy/criproxy/internal/testing/untested"
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

// No call waits for a log without a reader, or for a tail that has stopped reading.
func TestNoCallWaitsForAReaderThatDoesNotRead(t *testing.T) {
	untested.TakesLong(t)
	t.Parallel()
	dir := shortDir(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	machine := testkit.NewMachine(t, "", at("0.sock"), fakecri.Config{})
	machine.Start()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	proxy := exec.Command("criproxy", "-connect", at("0.sock"), "-listen", at("p.sock"), "-admin", at("a.sock"), "-state-dir", "none", "-hooks", "none",
		"-logtostderr", "-v", "5", "-flight-recorder", "262144")
	proxy.Stderr = w
	require.NoError(t, proxy.Start())
	require.NoError(t, w.Close())
	ended := make(chan error, 1)
	go func() { ended <- proxy.Wait() }()
	t.Cleanup(func() {
		_ = proxy.Process.Kill()
		<-ended
	})
	var tail net.Conn
	testkit.Eventually(t, "it serves", func() bool { tail, err = net.Dial("unix", at("a.sock")); return err == nil }) // its last socket
	defer tail.Close()
	_, err = io.WriteString(tail, "GET /events?follow=true HTTP/1.1\r\nHost: criproxy\r\n\r\n")
	require.NoError(t, err)
	response, err := http.ReadResponse(bufio.NewReader(tail), nil)
	require.NoError(t, err)
	cc := runtimeapi.NewRuntimeServiceClient(testkit.Dialed(t, at("p.sock")))
	nobodys := strings.Repeat("nobody's ", 200)
	for range 700 { // a pipe takes 64 KiB, and criproxy keeps 1 MiB
		_, err := cc.Version(t.Context(), &runtimeapi.VersionRequest{})
		require.NoError(t, err)
		_, err = cc.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: nobodys, Timeout: 1})
		require.NoError(t, err) // not an error in CRI
		_, err = cc.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: nobodys})
		require.Error(t, err)
	}
	machine.Kill() // criproxy notices the outage all the same
	testkit.Eventually(t, "the outage is noticed", func() bool {
		_, err := cc.Version(t.Context(), &runtimeapi.VersionRequest{})
		return err != nil
	})
	machine.Start()
	testkit.Eventually(t, "its end is noticed", func() bool {
		_, err := cc.Version(t.Context(), &runtimeapi.VersionRequest{})
		return err == nil
	})
	assert.Empty(t, ended, "it still runs")

	// A reader that continues learns how much is missing.
	out := &output{}
	read := make(chan struct{})
	go func() {
		defer close(read)
		buf := make([]byte, 1<<16)
		for {
			n, err := r.Read(buf)
			_, _ = out.Write(buf[:n])
			if err != nil {
				return
			}
		}
	}()
	out.waitFor(t, " of the log, which was not read")
	events, err := capture.NewReader(response.Body)
	require.NoError(t, err)
	for {
		var ev capture.Event
		require.NoError(t, events.Next(&ev))
		if ev.Kind == capture.Missed {
			assert.Positive(t, ev.Missed)
			break
		}
	}
	require.NoError(t, proxy.Process.Signal(os.Interrupt))
	err = <-ended
	ended <- err
	assert.NoError(t, err)
	<-read
}
