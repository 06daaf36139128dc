package director

import (
	"cmp"
	"context"
	"fmt"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/backend"
)

// A part is the answer of one backend to a call that went to several. The goroutine that asks the backend writes it, and the
// goroutine of the call reads it once all have returned.
type part struct {
	codec.Call
	backend int
	err     error
}

// cached reports whether an answer comes from the cache of its backend.
func cached(call *codec.Call) bool { return len(call.Header[backend.HeaderKey]) > 0 }

// fanout makes a call on several backends at once, under the caller's deadline, and joins
// their answers in the order of the backends. If one fails the call fails with its status:
// a client takes what a shortened list lacks for gone.
func (t *table) fanout(ctx context.Context, m *method, among []int, call *codec.Call) error {
	if m.pages != nil {
		return t.page(ctx, m, call)
	}
	if m.mirror {
		return t.mirror(ctx, m, among, call)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	call.Request.Bytes() // in one piece before several goroutines read it

	parts := make([]part, len(among))
	ask := func(i int) {
		p := &parts[i]
		p.backend, p.Call = among[i], codec.Call{Method: m.Name, Request: call.Request}
		p.err = t.panics.Do(m.Name, func() (err error) {
			switch err = t.invoke(ctx, m, p.backend, &p.Call); {
			case err != nil:
				return err
			case p.WellFormed && p.UTF8:
				p.Reply, err = t.toFront(m, p.backend, p.Reply)
			default:
				p.Reply, err = t.toPart(m, p.backend, p.Reply)
			}
			return err
		})
		if p.err != nil && m.merge == nil && !m.left(p.backend, p.err) {
			cancel() // the call has failed: end it on the other backends
		}
	}
	var wg sync.WaitGroup
	for i := 1; i < len(parts); i++ {
		wg.Go(func() { ask(i) })
	}
	ask(0)
	wg.Wait()

	if m.merge != nil {
		return t.combine(m, parts, call)
	}
	return t.join(m, parts, call)
}

// combine makes one reply of all parts with the Merge of the method. Header and
// trailer are the primary's.
func (t *table) combine(m *method, parts []part, call *codec.Call) (err error) {
	all := make([]Part, len(parts))
	for i, p := range parts {
		all[i] = Part{Backend: t.backends[p.backend], Reply: p.Reply, Remembered: cached(&p.Call), Err: p.err}
	}
	call.Header, call.Trailer = parts[0].Header, parts[0].Trailer
	for _, p := range parts[1:] {
		if names := p.Header[backend.HeaderKey]; len(names) > 0 { // a part came from a cache
			call.Header = metadata.Join(call.Header, metadata.MD{backend.HeaderKey: names})
		}
	}
	call.Reply, err = m.merge(all)
	return err
}

// firstOf asks one backend after another until a reply has the field m.first, or until one answers a lookup. If no reply has it
// and a backend has failed, the call fails with the first failure, unless the request has the
// field m.unsure. The client gets the header and trailer of the backend whose answer it gets.
func (t *table) firstOf(ctx context.Context, m *method, call *codec.Call) error {
	var none, failed *part // none is the primary's reply, without the field
	for b := range t.backends {
		p := &part{Call: codec.Call{Method: m.Name, Request: call.Request}}
		if p.err = t.unicast(ctx, m, b, &p.Call); p.err != nil {
			if failed = cmp.Or(failed, p); ctx.Err() != nil {
				break // nobody waits for an answer any more
			}
			continue
		}
		if m.lookup {
			call.Answer(&p.Call)
			return nil
		}
		if _, has, err := m.first.Lookup(p.Reply.Bytes()); has || err != nil {
			call.Answer(&p.Call)
			return err
		}
		if b == 0 {
			none = p
		}
	}
	answer := cmp.Or(failed, none)
	if failed != nil && none != nil && m.unsure != nil {
		value, _, err := m.unsure.Lookup(call.Request.Bytes())
		if err != nil {
			return err
		}
		if len(value) > 0 {
			answer = none
		}
	}
	call.Answer(&answer.Call)
	return answer.err
}

// left reports whether the merge leaves out the i-th backend, which answered err: a backend
// without the method has nothing to add. If the primary lacks the method the call fails, unless
// the profile says otherwise.
func (m *method) left(i int, err error) bool {
	return (i > 0 || m.skipMissing) && status.Code(err) == codes.Unimplemented
}

// join makes one reply of all parts by concatenation, which is how protobuf merges messages. Parts are in the order of the
// backends, whichever was the first to answer. If a backend has failed, the call fails with the first failure, unless that
// is only the cancellation that follows from another one.
func (t *table) join(m *method, parts []part, call *codec.Call) (err error) {
	var replies []*codec.Frame
	var failure, missing *part
	var before settled
	for i := range parts {
		p := &parts[i]
		switch {
		case p.err == nil:
			reply, err := m.settle(p.backend, p.Reply, m.fromCache(&p.Call), &before)
			if err != nil {
				return err
			}
			replies = append(replies, reply)
			call.Header, call.Trailer = metadata.Join(call.Header, p.Header), metadata.Join(call.Trailer, p.Trailer)
		case m.left(p.backend, p.err):
			missing = cmp.Or(missing, p)
		case failure == nil, status.Code(failure.err) == codes.Canceled && status.Code(p.err) != codes.Canceled:
			failure = p // a failure says more than the cancellations that follow from it
		}
	}
	if len(replies) == 0 {
		failure = cmp.Or(failure, missing)
	}
	if failure != nil {
		for _, r := range replies {
			r.Free()
		}
		call.Answer(&failure.Call)
		return failure.err
	}
	if sums := before.frame(m.winners); sums != nil {
		replies = append(replies, sums)
	}
	call.Reply, err = t.bounded(codec.Concat(replies), len(parts))
	return err
}

// bounded refuses a merged reply that is larger than the limit: the client would refuse it with a text that says nothing about
// the cause.
func (t *table) bounded(merged *codec.Frame, parts int) (*codec.Frame, error) {
	if n := merged.Len(); n > t.maxMessage {
		merged.Free()
		return nil, &routeError{codes.ResourceExhausted, fmt.Sprintf(
			"the merged reply of %d backends is %d bytes, more than the limit of %d: ask for it as a stream, or with a filter", parts, n, t.maxMessage)}
	}
	return merged, nil
}
