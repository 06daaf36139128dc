package server

import (
	"bytes"
	"context"
	"encoding/gob"
	"flag"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// A process that did not get the caches of the previous one used to serve without them: if there were no files, a
// runtime that was gone then had no pods.
func TestAProcessWithoutItsPredecessorDoesNotServe(t *testing.T) {
	var newer bytes.Buffer
	require.NoError(t, gob.NewEncoder(&newer).Encode(map[string][]byte{versionKey: {handoverVersion + 1}}))
	for name, other := range map[string]struct{ answer, why string }{
		"the other process ends":  {},
		"it sends something else": {answer: "not a cache"},
		"it is newer":             {newer.String(), "this one reads only versions up to 2; restart criproxy instead"},
	} {
		t.Run(name, func(t *testing.T) {
			fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
			require.NoError(t, err)
			theirs, ours := os.NewFile(uintptr(fds[0]), "theirs"), os.NewFile(uintptr(fds[1]), "ours")
			_, err = theirs.WriteString(other.answer)
			require.NoError(t, err)
			require.NoError(t, syscall.Shutdown(fds[0], syscall.SHUT_WR))
			defer theirs.Close()
			predecessor, err := ReceivePredecessor(ours)
			assert.ErrorContains(t, err, "taking over the backends of the previous process, which goes on")
			assert.ErrorContains(t, err, other.why)
			assert.Nil(t, predecessor)
		})
	}
	predecessor, err := ReceivePredecessor(nil)
	assert.NoError(t, err, "there is no process before this one")
	assert.Nil(t, predecessor)
}

// While it takes events, a successor that does not serve in the end is left. One of a later version gets all that this one knows.
func TestAnAbandonedSuccessorGetsNoMoreEvents(t *testing.T) {
	n := newNode(t, nil)
	ours, theirs := net.Pipe()
	h := n.proxy.newSuccessor(ours)
	require.NoError(t, theirs.SetDeadline(time.Now().Add(testkit.Patience)))
	_, err := theirs.Write([]byte{handoverVersion + 1})
	require.NoError(t, err)
	from := gob.NewDecoder(theirs)
	var all map[string][]byte
	require.NoError(t, from.Decode(&all))
	assert.Equal(t, []byte{handoverVersion}, all[versionKey])
	_, err = n.Version(t.Context(), &runtimeapi.VersionRequest{})
	require.NoError(t, err)
	var note successorNote
	require.NoError(t, from.Decode(&note))
	assert.NotEmpty(t, note.Events)
	h.leave()
	_, err = n.Version(t.Context(), &runtimeapi.VersionRequest{})
	require.NoError(t, err)
}

// A successor that took more than five seconds to start got none of the notes: it did not know the pods that were made meanwhile.
func TestASuccessorThatIsStillStartingGetsItsNotes(t *testing.T) {
	testkit.OnSimulatedClock(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		h := &successor{conn: ours, gob: gob.NewEncoder(ours)}
		sent := make(chan bool)
		go func() { sent <- h.send(&successorNote{Backend: "beta.io"}) }()
		time.Sleep(2 * successorTime)
		var n successorNote
		require.NoError(t, gob.NewDecoder(theirs).Decode(&n))
		assert.Equal(t, "beta.io", n.Backend)
		_, err := theirs.Write([]byte{1})
		require.NoError(t, err)
		assert.True(t, <-sent)

		began := time.Now()
		assert.False(t, h.send(&successorNote{Last: true}), "nobody reads it")
		assert.Equal(t, successorTime, time.Since(began), "a successor that follows answers sooner")
	})
}

var updatePromises = flag.String("update-promises", "", "write what this version hands over to testdata/compat/`VERSION`")

// recordHandover writes to a file what a process passes on: caches, evidence, and notes of a call that ends meanwhile, of
// recorded events, and of a call for which the process stays.
func recordHandover(t *testing.T, path string) {
	n := newNode(t, nil)
	n.stop()
	n.machine.Patience = time.Nanosecond
	n.start()
	n.isUp(1)
	p := n.run(1, "db", 1)
	begin, thaw := n.under(1)
	ctx, cancel := context.WithTimeout(n.Context(), time.Hour)
	defer cancel()
	done := begin(ctx, p)
	var passed bytes.Buffer
	ended := make(chan struct{})
	n.proxy.machine.Succeed = func(_ context.Context, caches net.Conn) error {
		from, thaw := gob.NewDecoder(io.TeeReader(caches, &passed)), sync.OnceFunc(thaw)
		if _, err := caches.Write([]byte{handoverVersion}); err != nil {
			return err
		}
		if err := from.Decode(new(map[string][]byte)); err != nil {
			return err
		}
		go func() {
			defer close(ended)
			for {
				var note successorNote
				if from.Decode(&note) != nil {
					return // that was all
				}
				if len(note.Calls) > 0 {
					thaw()
				}
				_, _ = caches.Write([]byte{1}) // if it fails, the next note does
			}
		}()
		n.run(0, "late", 1)
		return nil
	}
	require.NoError(t, n.proxy.HandOver(t.Context()))
	require.NoError(t, <-done)
	<-ended
	require.NoError(t, os.WriteFile(path, passed.Bytes(), 0o644))
}

// The caches in it are of another boot, so that nothing of them counts; that they can be read is all.
func TestThisVersionTakesOverWhatReleasesHavePassedOn(t *testing.T) {
	t.Parallel()
	compat := filepath.Join("..", "..", "testdata", "compat")
	if *updatePromises != "" {
		recordHandover(t, filepath.Join(compat, *updatePromises, "handover"))
	}
	releases, err := filepath.Glob(filepath.Join(compat, "*", "handover"))
	require.NoError(t, err)
	require.NotEmpty(t, releases)
	for _, path := range releases {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		from := gob.NewDecoder(bytes.NewReader(data))
		var all map[string][]byte
		require.NoError(t, from.Decode(&all))
		for name, one := range all {
			if !strings.HasPrefix(name, ":") {
				_, err := backend.Receive(name, backend.File{}, one)
				assert.NoError(t, err, "%s: %s", path, name)
			}
		}
		notes, about := 0, map[string]bool{}
		for note := (successorNote{}); from.Decode(&note) == nil; note = (successorNote{}) {
			notes++
			about[note.Backend+note.Note.Method] = true
			for _, call := range note.Calls {
				about["stays for "+call.Method] = true
			}
		}
		assert.Contains(t, about, "primary/runtime.v1.RuntimeService/RunPodSandbox")
		assert.Contains(t, about, "stays for /runtime.v1.RuntimeService/ExecSync")

		n := newNode(t, nil)
		n.stop()
		ours, theirs := net.Pipe()
		require.NoError(t, ours.SetDeadline(time.Now().Add(testkit.Patience)))
		go func() {
			defer ours.Close()
			answer := make([]byte, 1)
			_, _ = ours.Read(answer) // if it fails, so does ReadPredecessor, here and below
			go func() { _, _ = ours.Write(data) }()
			for range notes {
				_, _ = ours.Read(answer)
			}
		}()
		predecessor, err := ReadPredecessor(theirs)
		require.NoError(t, err)
		p, err := New(n.cfg, Options{Predecessor: predecessor})
		require.NoError(t, err)
		defer p.Close()
		predecessor.follow(p.set)
		assert.Contains(t, p.changes.Conditions().At, "beta.io")
		assert.NotEmpty(t, p.changes.Latest())
		assert.Equal(t, capture.Up, p.changes.Of("beta.io").State)
		assert.Zero(t, p.record.State().Missed)
		kinds := map[capture.Kind]bool{} // :: of the call that ended at last
		var ev capture.Event
		for f := p.record.Follow(); f.TryNext(&ev); {
			if strings.HasSuffix(ev.Method, "/ExecSync") {
				kinds[ev.Kind] = true
			}
		}
		assert.True(t, kinds[capture.Start] && kinds[capture.End], "%v", kinds)
	}
}
