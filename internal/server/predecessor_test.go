package server

import (
	"encoding/gob"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/base/recovery"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// An oldProcess is the process that hands over.
type oldProcess struct {
	t    *testing.T
	conn net.Conn
	gob  *gob.Encoder
}

// follows returns what a process follows that records into rec, and the process before it.
func follows(t *testing.T, rec *capture.Recorder) (*Predecessor, *oldProcess) {
	t.Helper()
	ours, theirs := net.Pipe()
	p := &oldProcess{t, ours, gob.NewEncoder(ours)}
	require.NoError(t, ours.SetDeadline(time.Now().Add(time.Minute)))
	given := make(chan error, 1)
	go func() {
		_, err := ours.Read(make([]byte, 1))
		if err == nil {
			err = p.gob.Encode(map[string][]byte{})
		}
		given <- err
	}()
	l, err := ReadPredecessor(theirs)
	require.NoError(t, err)
	require.NoError(t, <-given)
	if rec != nil {
		l.passage = capture.NewPassage(rec)
	}
	go func() { _ = recovery.Run("taking over", func() { l.follow(NewSet(nil)) }) }()
	t.Cleanup(l.leave)
	return l, p
}

func (p *oldProcess) send(n *successorNote) { require.NoError(p.t, p.gob.Encode(n)) }

func (p *oldProcess) taken() {
	_, err := p.conn.Read(make([]byte, 1))
	require.NoError(p.t, err)
}

// began is a note of a call that begins, and whose end never comes.
var began = successorNote{Events: []capture.Event{{Kind: capture.Start, Seq: 1, Call: 1, Method: "/a.B/Long", Time: time.Now()}}}

// missing returns how many events are missing at the end of a recording.
func missing(t *testing.T, rec *capture.Recorder) (n uint64) {
	t.Helper()
	rec.Close()
	var ev capture.Event
	for f := rec.Follow(true); f.TryNext(&ev); {
		n = ev.Missed
	}
	return n
}

func TestAProcessThatRecordsNothingStillLearnsOfCalls(t *testing.T) {
	_, before := follows(t, nil)
	before.send(&began)
	before.taken()
	require.NoError(t, before.gob.Encode(struct {
		Backend string
		Later   []string
	}{"any", []string{"of a later version"}}))
	before.taken()
}

func TestAProcessThatDiesWithItsNoteLeavesAGap(t *testing.T) {
	rec := capture.NewRecorder(capture.Config{})
	l, before := follows(t, rec)
	before.send(&began)
	require.NoError(t, before.conn.Close())
	<-l.ended
	assert.Equal(t, uint64(1), missing(t, rec))
}

func TestAProcessThatNeverEndsIsLeftWithAGap(t *testing.T) {
	rec := capture.NewRecorder(capture.Config{})
	l, before := follows(t, rec)
	before.send(&began)
	before.taken()
	l.leave()
	assert.Equal(t, uint64(1), missing(t, rec))
}

// The process in the middle of three takes what the first one records, and ends before that does.
func TestAGapOfTheFirstProcessReachesTheThird(t *testing.T) {
	second, third := capture.NewRecorder(capture.Config{}), capture.NewRecorder(capture.Config{})
	l, first := follows(t, second)
	rest := second.Follow(false)
	first.send(&began)
	first.taken()
	l.leave()
	second.Close()
	_, middle := follows(t, third)
	h := &successor{conn: middle.conn, gob: middle.gob, ctx: t.Context()}
	require.True(t, h.passOn(rest))
	assert.Equal(t, uint64(1), missing(t, third))
}
