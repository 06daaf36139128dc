package telemetry

import (
	"sync"
	"time"

	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/observe/why"
)

// Wrong counts what is wrong, from the recorded calls. It reads them when it is asked, so it costs nothing on a node that
// nobody monitors. It is safe for concurrent use: mu is held while events are read, so whoever asks meanwhile waits for the same
// answer. What it knows is at most as old as wrongFor, but for outages, which last as long as their conditions.
type Wrong struct {
	mu        sync.Mutex
	look      *why.Look
	rec       *capture.Recorder
	follower  *capture.Follower // nil before somebody asks
	assembler *calls.Assembler
	counted   time.Time
	found     map[[2]string]int // :: rule and level → how many findings last
}

const (
	wrongFor   = 10 * time.Minute // how far back it looks
	wrongEvery = 15 * time.Second // not more often
)

// NewWrong returns nil if nothing is recorded, or if look is nil.
func (r *Recording) NewWrong(look *why.Look, names calls.Namer) *Wrong {
	if r.rec == nil || look == nil {
		return nil
	}
	w := &Wrong{look: look, rec: r.rec, assembler: calls.NewAssembler(r.Schema, names)}
	w.assembler.Copy, w.assembler.KeepBytes = true, why.KeepBytes
	look.Follow(w.assembler)
	return w
}

// Count returns how many findings there are that are not over, by rule and level.
func (w *Wrong) Count() map[[2]string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if now.Sub(w.counted) < wrongEvery {
		return w.found
	}
	if w.follower == nil {
		w.follower = w.rec.FollowWanted(capture.Want{Since: now.Add(-wrongFor)})
	}
	var ev capture.Event
	for w.follower.TryNext(&ev) {
		c, what := w.assembler.Add(&ev)
		w.look.Take(&ev, c, what)
	}
	w.look.Forget(now.Add(-wrongFor))
	w.found, w.counted = w.look.Count(now), now
	return w.found
}
