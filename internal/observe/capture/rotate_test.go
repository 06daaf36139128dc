package capture_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/mounttest"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

func create(t testing.TB, path string, maxBytes int64, files int) *capture.Writer {
	t.Helper()
	w, err := capture.Create(capture.FileConfig{
		Path: path, Schema: muxtest.Library, MaxBytes: maxBytes, MaxFiles: files,
		Header: func() capture.FileHeader { return header },
	})
	require.NoError(t, err)
	return w
}

func TestEachFileOfARotationCanBeReadAlone(t *testing.T) {
	for _, format := range capture.Formats {
		t.Run(string(format), func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "calls."+string(format))
			rec := capture.NewRecorder(capture.Config{})
			_, stream := rec.Begin(t.Context(), capture.LegInfo{Method: muxtest.Method("Chat"), Client: true, Peer: capture.Peer{PID: 7, Name: "kubelet"}})
			for i := range 400 {
				record(rec, muxtest.Frame(t, "GetRequest", `book_id: "7f"`), muxtest.Frame(t, "Book", `id: "7f" title: "Tale"`))
				if i%10 == 0 {
					stream.Reply(muxtest.Frame(t, "Page", `text: "still here"`))
				}
			}
			stream.End(nil, nil)
			all := recorded(t, rec)
			w := create(t, path, 40<<10, 3)
			for i := range all {
				require.NoError(t, w.Write(&all[i]))
			}
			require.NoError(t, w.Close())

			names, err := filepath.Glob(filepath.Join(dir, "*"))
			require.NoError(t, err)
			require.Equal(t, []string{filepath.Join(dir, "calls.1."+string(format)), filepath.Join(dir, "calls.2."+string(format)), path}, names)
			var joined []capture.Event
			for _, name := range []string{names[1], names[0], names[2]} {
				info, err := os.Stat(name)
				require.NoError(t, err)
				assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
				assert.Less(t, info.Size(), int64(50<<10))
				data, err := os.ReadFile(name)
				require.NoError(t, err)
				h, events := decode(t, data)
				assert.Equal(t, header, h)
				assert.Equal(t, capture.Start, events[0].Kind)
				assert.True(t, events[0].Again, "the stream began in a file that is gone")
				assert.Equal(t, "kubelet", events[0].Peer.Name)
				for _, ev := range events {
					if !ev.Again {
						joined = append(joined, ev)
					}
				}
			}
			require.Less(t, len(joined), len(all))
			assert.Equal(t, normal(all[len(all)-len(joined):]), normal(joined), "no event is lost or repeated, except in files that were removed")
		})
	}
}

func TestAMissingFolderIsReported(t *testing.T) {
	_, err := capture.Create(capture.FileConfig{Path: filepath.Join(t.TempDir(), "none", "calls.jsonl"), Header: func() capture.FileHeader { return header }})
	assert.ErrorContains(t, err, "creating a capture")
}

func TestAStoppedWriterWritesAllEvents(t *testing.T) {
	path := filepath.Join(t.TempDir(), "calls.binlog")
	rec := capture.NewRecorder(capture.Config{})
	for range 100 {
		record(rec, codec.NewFrame([]byte("a")), codec.NewFrame([]byte("b")))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := create(t, path, 0, 1)
	require.NoError(t, w.Run(ctx, rec.Follow(true)))
	require.NoError(t, w.Close())
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	_, events := decode(t, bytes.Clone(data))
	assert.Len(t, events, 100*perCall)
}

func TestACompressedCaptureHasTheSameEvents(t *testing.T) {
	for _, format := range capture.Formats {
		t.Run(string(format), func(t *testing.T) {
			rec := capture.NewRecorder(capture.Config{})
			session(t, rec)
			rec.Close()
			var lengths []int
			var files [][]capture.Event
			for _, ending := range []string{"", capture.Compressed} {
				path := filepath.Join(t.TempDir(), "calls."+string(format)+ending)
				w := create(t, path, 0, 1)
				require.NoError(t, w.Run(t.Context(), rec.Follow(true)))
				require.NoError(t, w.Close())
				data, err := os.ReadFile(path)
				require.NoError(t, err)
				h, events := decode(t, data)
				assert.Equal(t, header, h)
				lengths, files = append(lengths, len(data)), append(files, events)
			}
			assert.Equal(t, files[0], files[1])
			assert.Less(t, 2*lengths[1], lengths[0])
		})
	}
}

func TestACutOffCompressedCaptureHasTheEventsBefore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "calls.jsonl.zst")
	w := create(t, path, 0, 2)
	ev := capture.Event{Kind: capture.Start, Method: muxtest.Method("Get"), Call: 1, Seq: 1}
	require.NoError(t, w.Write(&ev))
	require.NoError(t, w.Flush())
	ev.Seq++
	require.NoError(t, w.Write(&ev))
	require.NoError(t, w.Close())
	require.NoError(t, create(t, path, 0, 2).Close())
	data, err := os.ReadFile(filepath.Join(filepath.Dir(path), "calls.1.jsonl.zst"))
	require.NoError(t, err, "the name of an older file has both endings")
	r, err := capture.NewReader(bytes.NewReader(data[:len(data)-1]))
	require.NoError(t, err)
	require.NoError(t, r.Next(&ev))
	assert.Equal(t, uint64(1), ev.Seq)
	assert.ErrorIs(t, r.Next(&ev), io.ErrUnexpectedEOF)
	require.NoError(t, r.Close())
}

// smallDisk returns a folder with room for the given number of KiB.
func smallDisk(t *testing.T, kib int) string {
	t.Helper()
	return mounttest.Tmpfs(t, "full disks", fmt.Sprintf("size=%dk,mode=0700", kib))
}

func TestAFullDiskLosesOnlyCountedEvents(t *testing.T) {
	for _, format := range capture.Formats {
		t.Run(string(format), func(t *testing.T) {
			dir := smallDisk(t, 8192)
			path := filepath.Join(dir, "calls."+string(format))
			ballast := filepath.Join(dir, "ballast")
			require.NoError(t, os.WriteFile(ballast, make([]byte, 7936<<10), 0o600))
			rec := capture.NewRecorder(capture.Config{Bytes: 64 << 20})
			_, stream := rec.Begin(t.Context(), capture.LegInfo{Method: muxtest.Method("Chat"), Client: true, Peer: capture.Peer{PID: 7, Name: "kubelet"}})
			for range 1500 {
				record(rec, muxtest.Frame(t, "GetRequest", `book_id: "7f"`), muxtest.Frame(t, "Book", `id: "7f" title: "Tale"`))
			}
			stream.Reply(muxtest.Frame(t, "Page", `text: "still here"`))
			stream.End(nil, nil)
			all := recorded(t, rec)
			w := create(t, path, 96<<10, 100)
			failed := 0
			for i := range all {
				if failed == 500 {
					require.NoError(t, os.RemoveAll(ballast))
				}
				if err := w.Write(&all[i]); err != nil {
					require.ErrorContains(t, err, path[:len(dir)], "the error names the folder")
					failed++
				}
			}
			require.NoError(t, w.Close())
			assert.GreaterOrEqual(t, failed, 500)

			names, err := filepath.Glob(filepath.Join(dir, "calls*"))
			require.NoError(t, err)
			require.Greater(t, len(names), 2)
			kept, missing := 0, 0
			for _, name := range names {
				data, err := os.ReadFile(name)
				require.NoError(t, err)
				_, events := decode(t, data)
				for _, ev := range events {
					switch {
					case ev.Kind == capture.Missed:
						missing += int(ev.Missed)
					case !ev.Again:
						kept++
					}
				}
			}
			assert.Equal(t, len(all), kept+missing, "each event is there, or known to be missing")
			assert.Greater(t, missing, failed, "buffered events are missing too")
			assert.Less(t, missing, failed+1000)
		})
	}
}

func TestACaptureAfterAFullDiskKeepsTheOldFile(t *testing.T) {
	dir := smallDisk(t, 128)
	path := filepath.Join(dir, "calls.jsonl")
	ballast := filepath.Join(dir, "ballast")
	require.NoError(t, os.WriteFile(ballast, make([]byte, 100<<10), 0o600))
	w := create(t, path, 96<<10, 1)
	ev := capture.Event{Kind: capture.Start, Method: muxtest.Method("Get"), Call: 1}
	for w.Write(&ev) == nil && w.Flush() == nil {
		ev.Call++
	}
	require.NoError(t, os.Remove(ballast))
	require.NoError(t, w.Write(&ev))
	require.NoError(t, w.Close())
	old, err := os.ReadFile(filepath.Join(dir, "calls.1.jsonl"))
	require.NoError(t, err)
	_, events := decode(t, old)
	assert.Len(t, events, int(ev.Call)-1)
}
