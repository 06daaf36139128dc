package server

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/internal/fakecri"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/observe/telemetry"
	"github.com/criproxy/criproxy/internal/testing/recorded"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// A heldFile gives half of what it has. The rest waits.
type heldFile struct {
	testing.TB
	io.ReaderAt
	half  int64
	given *atomic.Int64
	rest  chan struct{} // closed when it gives the rest
}

func (f heldFile) ReadAt(b []byte, at int64) (int, error) {
	if f.given.Add(int64(len(b))) > f.half {
		select {
		case <-f.rest:
		case <-time.After(testkit.Patience):
			f.Error("serving waits for the rest")
		}
	}
	return f.ReaderAt.ReadAt(b, at)
}

// With an hour of calls in its folder, a process served a second later than without.
func TestNoCallWaitsForTheRecordingOfTheProcessBefore(t *testing.T) {
	t.Parallel()
	rec := capture.NewRecorder(capture.Config{Bytes: 1 << 20, Schema: criadapter.Schema()})
	_, all := recorded.Read(t, "testdata/node100.blocks")
	for i := range all[:20_000] {
		rec.Add(&all[i])
	}
	left, _ := rec.Snapshot(&capture.FileHeader{Version: capture.Version})
	type numbers struct {
		capture.Kind
		seq, missed uint64
	}
	var want []numbers
	of, err := capture.NewReader(bytes.NewReader(left))
	require.NoError(t, err)
	var ev capture.Event
	for of.Next(&ev) == nil {
		want = append(want, numbers{ev.Kind, ev.Seq, ev.Missed})
	}
	n := newNode(t, nil)
	n.stop()
	kept, err := filepath.Glob(filepath.Join(n.cfg.StateDir, "recorder-*.blocks"))
	require.NoError(t, err)
	for _, path := range kept {
		require.NoError(t, os.Remove(path))
	}
	require.NoError(t, os.WriteFile(filepath.Join(n.cfg.StateDir, fmt.Sprintf("recorder-%d.blocks", 1<<22+1)), left, 0o600))
	held := heldFile{TB: t, half: int64(len(left)) / 2, given: &atomic.Int64{}, rest: make(chan struct{})}
	release := sync.OnceFunc(func() { close(held.rest) })
	defer release() // so that it can end
	n.machine.Left = func(file io.ReaderAt) io.ReaderAt {
		held.ReaderAt = file
		return held
	}
	n.start()
	n.connect()
	testkit.Eventually(t, "somebody reads the rest", func() bool { return held.given.Load() > held.half })
	_, err = n.Version(n.ctx(), &runtimeapi.VersionRequest{})
	require.NoError(t, err)
	var released atomic.Bool
	read := make(chan []numbers, 1)
	go func() {
		f := n.proxy.record.Follow()
		assert.True(t, released.Load(), "a reader of the recording waits until all of it is there")
		var got []numbers
		for ev := (capture.Event{}); f.TryNext(&ev); {
			got = append(got, numbers{ev.Kind, ev.Seq, ev.Missed})
		}
		read <- got
	}()
	_, err = n.Version(n.ctx(), &runtimeapi.VersionRequest{})
	require.NoError(t, err)
	released.Store(true)
	release()
	var got []numbers
	testkit.Eventually(t, "it is read", func() bool {
		select {
		case got = <-read:
			return true
		default:
			return false
		}
	})
	require.Greater(t, len(got), len(want))
	require.Equal(t, want, got[:len(want)])
	for i, one := range got[len(want):] {
		require.Equal(t, want[len(want)-1].seq+uint64(i)+1, one.seq)
		require.NotEqual(t, capture.Missed, one.Kind)
	}
}

// The files of changes forget a runtime that has not changed for long, and no change says which version it was.
func TestARestartForgetsNoConditionThatTheHistoryHasForgotten(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	testkit.Eventually(t, "both have said what they are", func() bool {
		all := n.proxy.backends()
		return all[0].condition().Runtime != "" && all[1].condition().Runtime != ""
	})
	n.runtimes[1].Kill()
	n.isDown(1)
	b := n.proxy.backends()[1]
	want, version := b.condition(), n.proxy.backends()[0].condition().Runtime
	n.stop()
	history := telemetry.NewChanges(&telemetry.Recording{}, n.cfg.StateDir)
	history.Replay(telemetry.Conditions{}, func(*capture.Change) {})
	ended := make(chan struct{})
	close(ended)
	for i := range 4 { // the files are replaced three times
		for range 10_000 {
			history.Add(capture.Change{Time: time.Unix(int64(i), 0), What: capture.Refused})
		}
		history.Keep(ended)
	}
	for _, name := range []string{"changes.1.jsonl", "changes.jsonl"} {
		path := filepath.Join(n.cfg.StateDir, name)
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NotContains(t, string(data), `"what":"gone"`, "the history has forgotten it")
		require.NoError(t, os.WriteFile(path, append(data, `{"time":"2026-01-01T00:00:00Z","what":"up","backend":"be`...), 0o600)) // a crash
	}
	n.runtimes[0].Kill()
	n.runtimes[0].Replace(fakecri.Config{Version: "9.0.0"})
	n.runtimes[0].Start()
	n.start()
	k := n.proxy.backends()[1].condition()
	assert.Equal(t, []any{capture.Gone, want.Since.UnixNano(), want.Runtime}, []any{k.State, k.Since.UnixNano(), k.Runtime})
	assert.Len(t, k.Outages, 1)
	assert.Equal(t, "it is fakecri 9.0.0 now, before it was "+version, changed(t, n.proxy, capture.Replaced).Why)
}
