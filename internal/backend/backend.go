package backend

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/inventory"
)

// A Backend is one runtime: its latest answers, its condition, and the way to it. It answers in the runtime's place while that
// is slow or gone. It belongs to the runtime's name: it outlives its connections and configurations, each of which is a [Link],
// and with [Backend.Encode] and [Receive] the process. All its links must lead to the same runtime. It is safe for concurrent use.
//
// One lock guards what a Backend and its links know. Nothing waits or makes a call with the lock held. Three goroutines of Run
// work beside the calls: one makes lists and decides, one writes the file, one calls Watch. A disk or a log that hangs delays
// only its own. The lock of the file is taken before this one, never after it.
//
// These hold whenever the lock is free:
//
//   - Only the current link changes the condition. What an earlier link notices is about its own connection.
//   - back is an open channel exactly while the backend is gone.
//   - Each state that Watch is to get is in undelivered, in the order of the changes, until Run takes it out.
//   - Once listedSinceBoot or answeredSinceBoot is set, no list leaves the backend out: see hasNothing.
type Backend struct {
	codec.Conn // itself, for Invoke and NewStream
	file       file
	current    atomic.Pointer[Link] // that new calls use, and that decides the condition; nil before the first Commit
	check      chan struct{}        // holds a token if Run is to begin its next round now
	notify     chan struct{}        // holds a token if there are states in undelivered

	running    atomic.Bool     // Run is under way
	life       context.Context // of the requests in the background
	end        context.CancelFunc
	background sync.WaitGroup

	mu                sync.Mutex // guards the fields below, and what the links say it guards
	name              string
	inv               *inventory.Inventory
	listedSinceBoot   bool                 // the backend has answered a list since the machine was booted
	answeredSinceBoot bool                 // the backend has answered another call: it may have items
	late              map[string]string    // :: method → why its answers come late
	unsure            error                // why an earlier cache could not be read, until the backend is seen
	failing           bool                 // the latest attempt to write the file failed, and was reported
	news              bool                 // the file is out of date, apart from the inventory
	successor         func(inventory.Note) // passes the calls of this process to its successor; nil if there is none

	state       State         // without Seen: see stateNow
	back        chan struct{} // closed when the backend comes back; nil unless it is gone
	hopeless    bool          // it is gone, and waiting for it is useless: it has answered nothing, or must be mended
	attempts    []*attempt    // the unary calls under way, of all links, in no order
	refused     time.Time     // when a change was last refused because the backend is gone
	notified    bool          // Watch was notified of a condition
	undelivered []State       // states for which Watch has not been called yet
}

// newBackend returns a Backend of which nothing is known.
func newBackend(name string, at File) *Backend {
	b := &Backend{
		name: name, inv: inventory.New(), late: map[string]string{}, file: file{File: at, write: writeFile},
		check: make(chan struct{}, 1), notify: make(chan struct{}, 1),
	}
	b.Conn.Caller = b
	b.life, b.end = context.WithCancel(context.Background())
	return b
}

// Use is Stage and Commit.
func (b *Backend) Use(cfg Config) error {
	c, err := b.Stage(cfg)
	if err == nil {
		c.Commit()
	}
	return err
}

// Generation returns the number of the link, which grows with each [Link.Commit].
func (b *Backend) Generation() uint64 { return b.current.Load().generation }

// Err returns why an earlier cache could not be read, nil if it could, or if the backend has answered since.
func (b *Backend) Err() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.unsure
}

// State returns the state of the backend.
func (b *Backend) State() State {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stateNow()
}

// stateNow is State for the holder of b.mu.
func (b *Backend) stateNow() State {
	s := b.state
	s.Seen = b.listedSinceBoot
	return s
}

// Back returns a channel that is closed when the backend comes back, or when waiting for it becomes useless. It is nil if
// the backend is not gone.
func (b *Backend) Back() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state.Condition != Gone {
		return nil
	}
	return b.back
}

// Age returns the age of the oldest list that the cache answers with. It is zero while the backend is up.
func (b *Backend) Age() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	var oldest time.Duration
	for _, l := range b.current.Load().gates {
		if b.state.Condition != Up && l.Complete {
			oldest = max(oldest, time.Since(l.At))
		}
	}
	return oldest
}

// Unasked reports whether Run asks HealthCheck, because no method of the configuration says that the backend is back.
func (b *Backend) Unasked() bool { return b.current.Load().unasked }

// Check asks Run to begin its next round now, because something has changed.
func (b *Backend) Check() { wake(b.check) }

// wake puts a token into a channel that holds one, unless it has one.
func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// unseen reports whether the backend has answered nothing since the machine was booted. b.mu is held.
func (b *Backend) unseen() bool { return !b.listedSinceBoot && !b.answeredSinceBoot }

// noteAnswer notes that the backend has answered something, and so may have items. b.mu is held.
func (b *Backend) noteAnswer() {
	b.news = b.news || !b.answeredSinceBoot
	b.answeredSinceBoot = true
}

// answered is noteAnswer with the lock.
func (b *Backend) answered() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.noteAnswer()
}
