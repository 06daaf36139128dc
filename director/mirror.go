package director

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
)

// mirrorTime bounds one attempt to mirror a request.
// mirrorPause is the longest pause between two attempts.
const (
	mirrorTime  = 2 * time.Minute
	mirrorPause = time.Minute
)

// mirrors sends requests that one backend answers to others as well, for methods with all: mirror.
// The client neither waits for the others nor learns what they answer. Each backend gets the
// requests of a method one after another. mirrors retries a request that fails until the backend
// answers it, or until a newer request takes its place. It outlives the tables of a director.
//
// There is a mirror, with a goroutine of its own, only while it has a request to send. It uses the
// newest table for each attempt. A reload ends an attempt whose backend has got another connection,
// and the mirror of a backend that is gone.
type mirrors struct {
	newest func() *table
	life   context.Context
	end    context.CancelFunc
	group  sync.WaitGroup

	mu       sync.Mutex // guards the fields below
	underWay map[mirrorKey]*mirror
}

// mirrorKey identifies a mirror by the name of its backend and the method. The name outlives reloads; the place in a table does
// not.
type mirrorKey struct{ backend, method string }

// A mirror sends requests of one method to one backend: always the latest. Its goroutine is the only one that makes attempts.
type mirror struct {
	mirrorKey
	wake chan struct{} // holds a token when there is no reason to pause

	// mirrors.mu guards the fields below.
	latest *mirrored
	link   link               // of the latest attempt
	stop   context.CancelFunc // ends the latest attempt
}

// mirrored is a request with the metadata that the client sent, and its time. It is immutable, and has its own copy of the
// bytes, because it outlives the call: a backend that is gone gets it when it is back.
type mirrored struct {
	body []byte
	sent metadata.MD
	at   time.Time
}

// mirror makes a call on the first backend of among, and mirrors it to the others.
func (t *table) mirror(ctx context.Context, m *method, among []int, call *codec.Call) error {
	sent, _ := metadata.FromOutgoingContext(ctx)
	r := &mirrored{bytes.Clone(call.Request.Bytes()), sent, time.Now()}
	for _, b := range among[1:] {
		t.mirrors.put(mirrorKey{t.backends[b].Name, m.Name}, r, t)
	}
	return t.unicast(ctx, m, among[0], call)
}

// put has the mirror of key send a request, in place of one that waits.
func (s *mirrors) put(key mirrorKey, r *mirrored, t *table) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.Err() != nil {
		return
	}
	if m := s.underWay[key]; m != nil {
		m.latest = r
		signal(m.wake)
		return
	}
	m := &mirror{mirrorKey: key, wake: make(chan struct{}, 1), latest: r}
	s.underWay[key] = m
	s.group.Go(func() {
		defer s.leave(m, nil)
		_ = t.panics.Run(key.method, func() { s.keep(m) }) // the hook reports a panic
	})
}

// keep sends the latest request until the backend has answered it. The pause between two attempts doubles. It is the shortest
// again for a newer request, and when a backend that was gone is back. Close and a reload end an attempt under way.
func (s *mirrors) keep(m *mirror) {
	var request *mirrored
	attempts, pause := 0, minPause
	for {
		a := s.begin(m)
		if a == nil {
			return
		}
		if a.request != request {
			request, attempts, pause = a.request, 0, minPause
		}
		final, err := a.make()
		replaced := a.ctx.Err() == context.Canceled
		a.end()
		attempts++
		switch {
		case s.life.Err() != nil:
			a.report(err, attempts, false)
			return
		case replaced: // by a reload, which does not count as a failure
			attempts--
			continue
		case final:
			a.report(err, attempts, false)
			if s.leave(m, request) {
				return
			}
			continue
		case attempts == 1:
			a.report(err, attempts, true)
		}
		wait := time.NewTimer(pause)
		select {
		case <-wait.C:
			pause = min(2*pause, mirrorPause)
		case <-a.back():
			pause = minPause
		case <-m.wake:
		case <-s.life.Done():
		}
		wait.Stop()
	}
}

// leave ends a mirror, unless it has got a newer request than done, and reports whether it did. A
// nil done ends it in any case. put decides under the same lock whether the mirror still takes a
// request, so no request gets lost between the two.
func (s *mirrors) leave(m *mirror, done *mirrored) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if done != nil && m.latest != done {
		return false
	}
	if s.underWay[m.mirrorKey] == m {
		delete(s.underWay, m.mirrorKey)
	}
	return true
}

// follow ends the mirrors of backends, and the attempts on connections, that the newest table does
// not have.
func (s *mirrors) follow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.newest()
	for key, m := range s.underWay {
		b := t.place(m.backend)
		if b >= 0 && t.links[b] == m.link {
			continue
		}
		if b < 0 {
			delete(s.underWay, key)
		}
		if m.stop != nil {
			m.stop()
		}
		signal(m.wake)
	}
}

// close ends all mirrors, and returns when they have ended.
func (s *mirrors) close() {
	s.mu.Lock()
	s.end()
	s.mu.Unlock()
	s.group.Wait()
}

// An attempt is one call of a mirror, with the table that is the newest when it begins. It belongs to the mirror's goroutine;
// another one may only call end.
type attempt struct {
	ctx     context.Context
	end     context.CancelFunc
	table   *table
	method  *method
	backend int
	request *mirrored
}

// begin begins an attempt with the newest table. It returns nil if that has the backend or the
// rule for the method no longer, or if the mirror has ended.
func (s *mirrors) begin(m *mirror) *attempt {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.newest()
	b, method := t.place(m.backend), t.methods[m.method]
	if s.underWay[m.mirrorKey] != m || b < 0 || method == nil || !method.mirror {
		return nil
	}
	a := &attempt{table: t, method: method, backend: b, request: m.latest}
	a.ctx, a.end = context.WithTimeout(s.life, mirrorTime)
	m.link, m.stop = t.links[b], a.end
	return a
}

// make makes the call. final says that another attempt would have the same result.
func (a *attempt) make() (final bool, err error) {
	request, err := a.table.toBack(a.method, a.backend, codec.NewFrame(a.request.body))
	if err != nil {
		return true, err
	}
	ctx := metadata.NewOutgoingContext(a.ctx, a.request.sent)
	call := &codec.Call{Method: a.method.Name, Request: request}
	switch err = a.table.calls[a.backend].Call(ctx, call); status.Code(err) {
	case codes.OK:
		call.Reply.Free()
		return true, nil
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.OutOfRange, codes.Unimplemented:
		return true, err
	}
	return false, err
}

// back returns a channel that is closed when a backend that was gone comes back. It is nil for a
// backend without a cache.
func (a *attempt) back() <-chan struct{} {
	if known := a.table.backends[a.backend].Known; known != nil {
		return known.Back()
	}
	return nil
}

// report reports what became of a request, if anybody wants to know.
func (a *attempt) report(err error, attempts int, again bool) {
	if a.table.mirrored != nil {
		a.table.mirrored(Mirroring{
			Backend: a.table.backends[a.backend], Method: a.method.Name,
			Attempts: attempts, After: time.Since(a.request.at), Err: err, Again: again,
		})
	}
}

// place returns the place of the backend with a name, or -1 if there is none.
func (t *table) place(name string) int {
	return slices.IndexFunc(t.backends, func(b Backend) bool { return b.Name == name })
}
