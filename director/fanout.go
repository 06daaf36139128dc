package director

import (
	"cmp"
	"context"
	"fmt"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/memory"
)

// part is the answer of one backend to a call that went to several.
type part struct {
	backend         int
	reply           *codec.Frame
	header, trailer metadata.MD
	verdict         memory.Verdict // of the backend's memory, which has checked the reply
	err             error
}

// fanout makes a call on several backends at once, under the caller's deadline, and joins
// their answers in the order of the backends. If one fails the call fails with its status:
// a client takes what a shortened list lacks for gone.
func (t *table) fanout(ctx context.Context, m *method, among []int, request *codec.Frame, opts []grpc.CallOption) (*codec.Frame, error) {
	if m.pages != nil {
		return t.page(ctx, m, request, opts)
	}
	if m.mirror {
		return t.mirror(ctx, m, among, request, opts)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	request.Bytes() // in one piece before several goroutines read it

	parts := make([]part, len(among))
	ask := func(i int) {
		p := &parts[i]
		p.backend = among[i]
		p.err = t.panics.Do(m.Name, func() (err error) {
			opts := []grpc.CallOption{grpc.Header(&p.header), grpc.Trailer(&p.trailer), &p.verdict}
			switch p.reply, err = t.invoke(ctx, m, p.backend, request, opts); {
			case err != nil:
				return err
			case p.verdict.WellFormed && p.verdict.UTF8:
				p.reply, err = t.toFront(m, p.backend, p.reply)
			default:
				p.reply, err = t.toPart(m, p.backend, p.reply)
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
		return t.combine(m, parts, opts)
	}
	return t.join(m, parts, opts)
}

// combine makes one reply of all parts with the Merge of the method. Header and
// trailer are the primary's.
func (t *table) combine(m *method, parts []part, opts []grpc.CallOption) (*codec.Frame, error) {
	all := make([]Part, len(parts))
	for i, p := range parts {
		all[i] = Part{Backend: t.backends[p.backend], Reply: p.reply, Remembered: len(p.header[memory.HeaderKey]) > 0, Err: p.err}
	}
	header, trailer := codec.MetadataOf(opts)
	store(header, parts[0].header)
	store(trailer, parts[0].trailer)
	for _, p := range parts[1:] {
		if names := p.header[memory.HeaderKey]; len(names) > 0 {
			store(header, metadata.MD{memory.HeaderKey: names}) // a part came from memory
		}
	}
	return m.merge(all)
}

// firstOf asks one backend after another until a reply has the field m.first. If no reply has it
// and a backend has failed, the call fails with the first failure, unless the request has the
// field m.unsure. The client gets the header and trailer of the backend whose answer it gets.
func (t *table) firstOf(ctx context.Context, m *method, request *codec.Frame, opts []grpc.CallOption) (*codec.Frame, error) {
	var none, failed *part // none is the primary's reply, without the field
	for b := range t.backends {
		p := &part{backend: b}
		p.reply, p.err = t.unicast(ctx, m, b, request, withMetadata(opts, &p.header, &p.trailer))
		if p.err != nil {
			failed = cmp.Or(failed, p)
			continue
		}
		if _, has, err := m.first.Lookup(p.reply.Bytes()); has || err != nil {
			give(opts, p.header, p.trailer)
			return p.reply, err
		}
		if b == 0 {
			none = p
		}
	}
	answer := cmp.Or(failed, none)
	if failed != nil && none != nil && m.unsure != nil {
		value, _, err := m.unsure.Lookup(request.Bytes())
		if err != nil {
			return nil, err
		}
		if len(value) > 0 {
			answer = none
		}
	}
	give(opts, answer.header, answer.trailer)
	return answer.reply, answer.err
}

// left reports whether the merge leaves out the i-th backend, which answered err: a backend
// without the method has nothing to add. If the primary lacks the method the call fails, unless
// the profile says otherwise.
func (m *method) left(i int, err error) bool {
	return (i > 0 || m.skipMissing) && status.Code(err) == codes.Unimplemented
}

func (t *table) join(m *method, parts []part, opts []grpc.CallOption) (*codec.Frame, error) {
	header, trailer := codec.MetadataOf(opts)
	var replies []*codec.Frame
	var failure, missing *part
	var before settled
	for i := range parts {
		p := &parts[i]
		switch {
		case p.err == nil:
			reply, err := m.settle(p.backend, p.reply, &before)
			if err != nil {
				return nil, err
			}
			replies = append(replies, reply)
			store(header, p.header)
			store(trailer, p.trailer)
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
		give(opts, failure.header, failure.trailer)
		return nil, failure.err
	}
	if sums := before.frame(m.winners); sums != nil {
		replies = append(replies, sums)
	}
	return t.bounded(codec.Concat(replies), len(parts))
}

// give stores the header and trailer that the client gets where the options want them.
func give(opts []grpc.CallOption, header, trailer metadata.MD) {
	h, t := codec.MetadataOf(opts)
	if h != nil {
		*h = header
	}
	if t != nil {
		*t = trailer
	}
}

// bounded refuses a merged reply that is larger than the limit.
func (t *table) bounded(merged *codec.Frame, parts int) (*codec.Frame, error) {
	if n := merged.Len(); n > t.maxMessage {
		merged.Free()
		return nil, &routeError{codes.ResourceExhausted, fmt.Sprintf(
			"the merged reply of %d backends is %d bytes, more than the limit of %d: ask for it as a stream, or with a filter", parts, n, t.maxMessage)}
	}
	return merged, nil
}

// store adds md to the metadata at addr, which is nil if the caller does not want any.
func store(addr *metadata.MD, md metadata.MD) {
	if addr != nil && len(md) > 0 {
		*addr = metadata.Join(*addr, md)
	}
}
