package server

import (
	"encoding/gob"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// A process that did not get the memories of the previous one used to serve without them: if there were no files, a
// runtime that was gone then had no pods.
func TestAProcessWithoutItsLegacyDoesNotServe(t *testing.T) {
	for name, answer := range map[string]string{"the other process ends": "", "it sends something else": "not a memory"} {
		t.Run(name, func(t *testing.T) {
			fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
			require.NoError(t, err)
			theirs, ours := os.NewFile(uintptr(fds[0]), "theirs"), os.NewFile(uintptr(fds[1]), "ours")
			_, err = theirs.WriteString(answer)
			require.NoError(t, err)
			require.NoError(t, syscall.Shutdown(fds[0], syscall.SHUT_WR))
			defer theirs.Close()
			legacy, err := ReceiveLegacy(ours)
			assert.ErrorContains(t, err, "taking over the memories of the previous process, which goes on")
			assert.Nil(t, legacy)
		})
	}
	legacy, err := ReceiveLegacy(nil)
	assert.NoError(t, err, "there is no process before this one")
	assert.Nil(t, legacy)
}

// A program of an earlier version asks only for the memories, and would take recorded events for notes of calls.
func TestAnEarlierVersionGetsNoRecordedEvents(t *testing.T) {
	n := newNode(t, nil)
	ours, theirs := net.Pipe()
	h := n.proxy.bequeath(ours)()
	_, err := theirs.Write([]byte{1})
	require.NoError(t, err)
	from := gob.NewDecoder(theirs)
	var all map[string][]byte
	require.NoError(t, from.Decode(&all))
	assert.Contains(t, all, evidenceKey)
	<-h.done
	_, err = n.Version(t.Context(), &runtimeapi.VersionRequest{})
	require.NoError(t, err)
	h.finish()
	assert.ErrorIs(t, from.Decode(&successorNote{}), io.EOF, "no note came")
}

// While it takes events, a successor that does not serve in the end is left.
func TestAnAbandonedSuccessorGetsNoMoreEvents(t *testing.T) {
	n := newNode(t, nil)
	ours, theirs := net.Pipe()
	h := n.proxy.bequeath(ours)()
	_, err := theirs.Write([]byte{withRest})
	require.NoError(t, err)
	from := gob.NewDecoder(theirs)
	var all map[string][]byte
	require.NoError(t, from.Decode(&all))
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
