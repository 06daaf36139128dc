package main

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/capture"
	"github.com/criproxy/criproxy/internal/fakecri"
)

// A log that nobody reads, and a tail that has stopped reading, keep no call waiting.
func TestNoCallWaitsForWhoDoesNotRead(t *testing.T) {
	dir := shortDir(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	machine := newMachine(t, "", at("0.sock"), fakecri.Config{})
	machine.start()
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
	eventually(t, "it serves", func() bool { _, err := os.Stat(at("p.sock")); return err == nil })
	tail, err := net.Dial("unix", at("a.sock"))
	require.NoError(t, err)
	defer tail.Close()
	_, err = io.WriteString(tail, "GET /events?follow=true HTTP/1.1\r\nHost: criproxy\r\n\r\n")
	require.NoError(t, err)
	response, err := http.ReadResponse(bufio.NewReader(tail), nil)
	require.NoError(t, err)
	defer response.Body.Close()
	cc := runtimeapi.NewRuntimeServiceClient(dialed(t, at("p.sock")))
	for range 2000 { // a pipe takes 64 KiB
		_, err := cc.Version(t.Context(), &runtimeapi.VersionRequest{})
		require.NoError(t, err)
		_, err = cc.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: "nobody's", Timeout: 1})
		require.NoError(t, err) // as CRI has it
		_, err = cc.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: "nobody's"})
		require.Error(t, err)
	}
	machine.kill() // an outage is noticed all the same
	eventually(t, "the outage is noticed", func() bool {
		_, err := cc.Version(t.Context(), &runtimeapi.VersionRequest{})
		return err != nil
	})
	machine.start()
	eventually(t, "its end is noticed", func() bool {
		_, err := cc.Version(t.Context(), &runtimeapi.VersionRequest{})
		return err == nil
	})
	assert.Empty(t, ended, "it still runs")

	// Whoever reads on is told what is missing.
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
	out.waitFor(t, "Calls are missing here: the log is written too slowly for them")
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
