package model

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/criproxy/criproxy/director"
)

// world holds the whole simulation: the runtimes, the process, its clients, and what they have seen.
type world struct {
	seed   uint64
	began  time.Time
	ctx    context.Context
	end    context.CancelFunc
	group  sync.WaitGroup // goroutines of clients and runtimes
	api    director.Config
	dir    string
	random *rand.Rand // of the chaos

	// unordered lets runtimes answer lists out of order: a later request may get an older list.
	unordered bool

	runtimes []*runtime

	mu        sync.Mutex
	starts    []time.Time // of processes: when each got the memory of the previous one
	now       *proxy      // nil while there is none
	slowWatch time.Duration
	events    []string
	wrong     string
	counts    map[string]int
	underWay  map[*call]struct{}
	watcher   watcher
	calls     int
}

// epoch returns a channel that is closed when all calls that are under way have ended.
func (w *world) epoch() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	ended := make(chan struct{})
	var all []chan struct{}
	for c := range w.underWay {
		all = append(all, c.done)
	}
	w.group.Go(func() {
		defer close(ended)
		for _, c := range all {
			<-c
		}
	})
	return ended
}

// trace records an event. mu is held.
func (w *world) trace(format string, args ...any) {
	w.events = append(w.events, fmt.Sprintf("%9.3f  ", time.Since(w.began).Seconds())+fmt.Sprintf(format, args...))
	if len(w.events) > 4000 {
		w.events = w.events[1000:]
	}
}

// violated records a violation, and ends the run. mu is held.
func (w *world) violated(format string, args ...any) {
	w.trace("WRONG: "+format, args...)
	if w.wrong == "" {
		w.wrong = fmt.Sprintf("at %.3f s: ", time.Since(w.began).Seconds()) + fmt.Sprintf(format, args...)
	}
	w.end()
}

func (w *world) must(err error) {
	if err != nil {
		panic(err)
	}
}

// story returns the latest events.
func (w *world) story(n int) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.events[max(0, len(w.events)-n):], "\n")
}

// sleep waits, and reports whether the world goes on.
func (w *world) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return w.ctx.Err() == nil
	case <-w.ctx.Done():
		return false
	}
}
