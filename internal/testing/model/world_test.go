package model

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/criproxy/criproxy/internal/transport"
)

// world holds the whole simulation: the runtimes, the process, its clients, and what they have seen.
type world struct {
	seed   uint64
	began  time.Time
	lived  time.Duration // lasts, or until a violation
	ctx    context.Context
	end    context.CancelFunc
	group  sync.WaitGroup // goroutines of clients and runtimes
	served sync.WaitGroup // goroutines of processes and of connections to runtimes
	front  *front
	root   string     // the folder with all others
	dir    string     // of the state
	random *rand.Rand // of the chaos

	without []string // ids of faults that do not happen

	runtimes []*runtime

	writing sync.Mutex
	events  []string  // writing guards it
	said    []said    // by the log, of backends; writing guards it
	held    []held    // of handovers that were aborted; writing guards it
	mistake string    // a line of the log about a panic; writing guards it
	log     io.Writer // gets all events; nil: nothing does

	mu         sync.Mutex
	starts     []time.Time // of processes: when each got the caches of the previous one
	now        *proxy      // nil while there is none
	processes  []*proxy
	keeps      bool // the latest process has files
	clients    []*transport.Client
	tokens     int
	wrong      string
	met        map[situation]int
	faults     []string  // ids of those that have happened
	cut        time.Time // when a client's connection was cut
	crashed    time.Time // when a process last crashed
	operation  string    // the latest one of the operator
	operatedAt time.Time
	underWay   map[*call]struct{}
	watcher    watcher
	calls      int
}

// The goroutine that waits for signals must be outside of bubbles.
func init() { signal.Notify(make(chan os.Signal, 1), syscall.SIGUSR1) }

// trace records an event.
func (w *world) trace(format string, args ...any) {
	w.writing.Lock()
	defer w.writing.Unlock()
	text := strings.ReplaceAll(fmt.Sprintf(format, args...), w.root, "") // it has another name in each process
	w.events = append(w.events, fmt.Sprintf("%9.3f  ", time.Since(w.began).Seconds())+text)
	if w.log != nil {
		fmt.Fprintln(w.log, w.events[len(w.events)-1])
	}
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
func (w *world) story() string {
	w.writing.Lock()
	defer w.writing.Unlock()
	return strings.Join(w.events[max(0, len(w.events)-60):], "\n")
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
