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
	"sync"
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
			dir := shortDir(t)
			at := func(name string) string { return filepath.Join(dir, name) }
			machine := testkit.NewMachine(t, "", at("0.sock"), fakecri.Config{})
			machine.Start()
			machine.When(testkit.Failing(status.Error(codes.Internal, "it broke"), "StopContainer"))
			log := &output{}
			proxy := exec.Command("criproxy", "-connect", at("0.sock"), "-listen", at("p.sock"), "-state-dir", "none", "-hooks", "none", "-logtostderr", "-v", level)
			proxy.Stderr = log
			require.NoError(t, proxy.Start())
			log.waitFor(t, "Serving")
			cc := runtimeapi.NewRuntimeServiceClient(testkit.Dialed(t, at("p.sock")))
			_, err := cc.Version(t.Context(), &runtimeapi.VersionRequest{})
			require.NoError(t, err)
			_, err = cc.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
				Metadata: &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "default", Uid: "1"}}})
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
				log.waitFor(t, "the client ended the call")
			}
			require.NoError(t, proxy.Process.Signal(os.Interrupt)) // criproxy writes the rest of the log
			require.NoError(t, proxy.Wait())
			assert.Equal(t, want["StopContainer"], strings.Count(log.String(), "Call failed"), "a client that goes is no failure:\n%s", log.String())
			for method, n := range want {
				assert.Equal(t, n, strings.Count(log.String(), `method="/runtime.v1.RuntimeService/`+method+`"`), "%s:\n%s", method, log.String())
			}
			assert.Equal(t, want["StopContainer"], strings.Count(log.String(), "it broke"))
			assert.Equal(t, want["RunPodSandbox"], strings.Count(log.String(), `request="config {metadata {name: \"web\"`), "readable:\n%s", log.String())
		})
	}
}

// If replies come faster than a small recorder can keep them, the log lacks some and says why.
func TestTheLogSaysThatTheRecorderIsTooSmall(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	machine := testkit.NewMachine(t, "", at("0.sock"), fakecri.Config{})
	machine.Start()
	log := &output{}
	proxy := exec.Command("criproxy", "-connect", at("0.sock"), "-listen", at("p.sock"), "-state-dir", "none", "-hooks", "none", "-logtostderr", "-v", "5", "-flight-recorder", "65536")
	proxy.Stderr = log
	require.NoError(t, proxy.Start())
	log.waitFor(t, "Serving")
	cc := runtimeapi.NewRuntimeServiceClient(testkit.Dialed(t, at("p.sock")))
	for i := range 10 {
		_, err := cc.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
			Metadata:    &runtimeapi.PodSandboxMetadata{Name: fmt.Sprint("web", i), Namespace: "default", Uid: fmt.Sprint(i)},
			Annotations: map[string]string{"much": strings.Repeat("x", 4000)},
		}})
		require.NoError(t, err)
	}
	for !strings.Contains(log.String(), "the flight recorder is too small") {
		var lists sync.WaitGroup
		for range 20 {
			lists.Go(func() {
				_, err := cc.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
				assert.NoError(t, err)
			})
		}
		lists.Wait()
	}
	assert.Contains(t, log.String(), "-flight-recorder")
	require.NoError(t, proxy.Process.Signal(os.Interrupt))
	require.NoError(t, proxy.Wait())
}
