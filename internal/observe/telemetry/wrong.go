package telemetry

import (
	"sync"
	"time"

	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// A Finder says what is wrong, from the calls of a recording. Only one goroutine at a time uses it.
type Finder interface {
	Follow(*calls.Assembler)
	Take(*capture.Event, *calls.Call, calls.What)
	Forget(before time.Time)
	Count(now time.Time) map[[2]string]int // :: rule and level → how many findings are not over
}

// Wrong counts what is wrong, from the recorded calls. It reads them when it is asked, so it costs nothing on a node that
// nobody monitors. It is safe for concurrent use.
type Wrong struct {
	mu        sync.Mutex
	finder    Finder
	rec       *capture.Recorder
	follower  *capture.Follower // nil before somebody asks
	assembler *calls.Assembler
	counted   time.Time
	found     map[[2]string]int
}

const (
	wrongFor   = 10 * time.Minute // how far back it looks
	wrongEvery = 15 * time.Second // not more often
)

// NewWrong returns nil if nothing is recorded, or if finder is nil.
func (r *Recording) NewWrong(finder Finder, names calls.Namer) *Wrong {
	if r.rec == nil || finder == nil {
		return nil
	}
	w := &Wrong{finder: finder, rec: r.rec, assembler: calls.NewAssembler(r.Schema, names)}
	w.assembler.Copy, w.assembler.KeepBytes = true, wrongBytes
	finder.Follow(w.assembler)
	return w
}

// wrongBytes of each message are kept.
const wrongBytes = 4096

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
		w.finder.Take(&ev, c, what)
	}
	w.finder.Forget(now.Add(-wrongFor))
	w.found, w.counted = w.finder.Count(now), now
	return w.found
}
