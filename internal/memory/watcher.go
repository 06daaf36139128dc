package memory

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/transport"
)

// A Watcher is a connection to a backend that has no cache. All calls pass, as without it; it notices when the backend can no
// longer be reached, or answers nothing, and when it is back. Its conditions are [Up] and [Gone]:
//
//	from  event                                                            to
//	      the first connection                                             up
//	up    the connection is refused or ends                                gone
//	up    calls are under way, and none has been answered for Silence      gone
//	gone  it has answered a call, or Alive                                 up
//
// A connection alone ends no outage: a process that hangs accepts connections. It is safe for concurrent use. The caller sets
// the exported fields before the first call.
type Watcher struct {
	codec.Caller
	Alive   string        // as in [Config]; empty means HealthCheck
	Silence time.Duration // as in [Config]; zero means DefaultSilence
	Watch   func(State)   // called for each change, and for each further error of the connection

	pulse   pulse
	check   chan struct{} // holds a token if Run is to look now
	probes  sync.WaitGroup
	mu      sync.Mutex // guards the fields below, and the order of calls of Watch
	known   bool       // Watch was called, or Before
	gone    bool
	down    bool   // there is no connection
	answers uint64 // when it went
	probing bool   // Alive is under way
}

// NewWatcher returns a Watcher of a connection, to a backend that was last seen in the state before.
func NewWatcher(conn codec.Caller, before State) *Watcher {
	gone := before.Condition == Gone
	return &Watcher{Caller: conn, check: make(chan struct{}, 1), known: gone, gone: gone}
}

// Call makes a unary call.
func (w *Watcher) Call(ctx context.Context, call *codec.Call) error {
	return w.pulse.of(ctx, func(ctx context.Context) error { return w.Caller.Call(ctx, call) })
}

// Reached notes that there is a connection to the backend, or why there is none.
func (w *Watcher) Reached(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = err != nil
	switch {
	case err != nil:
		w.goes(err)
	case w.gone:
		wake(w.check)
	case !w.known:
		w.known = true
		w.Watch(State{Condition: Up, Since: time.Now()})
	}
}

// goes notes that the backend is gone, for a reason. w.mu is held.
func (w *Watcher) goes(why error) {
	w.known, w.gone, w.answers = true, true, w.pulse.answers.Load()
	w.Watch(State{Condition: Gone, Since: time.Now(), Err: why})
}

// Run looks after the backend until ctx ends.
func (w *Watcher) Run(ctx context.Context) {
	defer w.probes.Wait()
	for sleep(ctx, DefaultInterval, w.check) {
		w.look(ctx)
	}
}

// look notes whether the backend is silent or back.
func (w *Watcher) look(ctx context.Context) {
	bound := cmp.Or(w.Silence, DefaultSilence)
	w.mu.Lock()
	defer w.mu.Unlock()
	silent := w.pulse.beat(2 * DefaultInterval)
	switch {
	case w.gone && !w.down && w.pulse.answers.Load() != w.answers:
		w.gone = false
		w.Watch(State{Condition: Up, Since: time.Now()})
	case !w.gone && silent >= bound:
		w.goes(&transport.SilentError{Lasted: bound})
	}
	if (silent > 0 || w.gone && !w.down) && !w.probing {
		w.probing = true
		w.probes.Go(func() { w.probe(ctx) })
	}
}

// probe calls Alive. Any answer counts, also an error.
func (w *Watcher) probe(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, mostPatience)
	defer cancel()
	before := w.pulse.answers.Load()
	_ = w.Call(ctx, &codec.Call{Method: cmp.Or(w.Alive, HealthCheck), Request: &codec.Frame{}})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.probing = false
	if w.gone && w.pulse.answers.Load() != before {
		wake(w.check)
	}
}

// Hangs reports whether a state is [Gone] because the backend answers nothing.
func (s State) Hangs() bool {
	silent := new(transport.SilentError)
	return errors.As(s.Err, &silent)
}
