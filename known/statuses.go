package known

import (
	"context"
	"slices"

	"github.com/criproxy/criproxy/codec"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
)

// statusOf answers a status call: the backend does, or what is known of it.
func (c *Conn) statusOf(ctx context.Context, l *list, name string, args, reply any, opts []grpc.CallOption) error {
	request, err := codec.FrameOf(args)
	if err != nil {
		return err
	}
	body := request.Bytes()
	id, _, err := l.status.id.Lookup(body)
	if err != nil {
		return err
	}
	item := c.item(l, string(id))
	answer := &codec.Frame{}
	err = c.call(ctx, func(ctx context.Context) error { return c.next.Invoke(ctx, name, request, answer, opts...) })
	if err == nil {
		if l.asksStatus() && isOnlyID(body, id) {
			c.keep(l, string(id), item, answer)
		}
		return codec.Deliver(reply, answer)
	}
	if c.cfg.Policy != LastKnown || ended(ctx) {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state.Up {
		return err
	}
	if known, ok := c.statusFromMemory(l, string(id)); ok {
		mark(opts, c.cfg.Name)
		return codec.Deliver(reply, codec.NewFrame(known))
	}
	return c.unavailable()
}

// item returns an item as it was last listed, nil if it was not.
func (c *Conn) item(l *list, id string) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	l.settle()
	body, _ := l.items.get(id)
	return body
}

// keep remembers the status of an item that was asked for when it was listed as
// item. If it is listed otherwise by now, the status may be older than that. Of what is
// not listed nothing is remembered.
func (c *Conn) keep(l *list, id string, item []byte, answer *codec.Frame) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bytes()+answer.Len() > c.cfg.MaxBytes {
		return
	}
	l.settle()
	now, listed := l.items.get(id)
	if !listed {
		return
	}
	if same(l.item, now, item) {
		l.news = l.news || l.stale[id]
		delete(l.stale, id)
	}
	if b := answer.Bytes(); !same(l.status.method.Output, l.statuses[id], b) {
		l.statuses[id] = append([]byte{}, b...)
		l.news = true
	}
}

// statusFromMemory returns the reply to a status call, if it is known. A thing
// whose status is its item in the list, and that is not listed, is not there: the
// reply is empty. A status from before the item changed is not known: kubelet, which
// asks when a list shows a change, would take it for what the change came to.
// c.mu is held.
func (c *Conn) statusFromMemory(l *list, name string) ([]byte, bool) {
	l.settle()
	if l.status.wrap != 0 {
		item, ok := l.byName(c.cfg.Equivalents(name))
		if !ok {
			return nil, l.complete || c.absent()
		}
		return protowire.AppendBytes(protowire.AppendTag(nil, protowire.Number(l.status.wrap), protowire.BytesType), item), true
	}
	id, ok := l.resolve(name)
	s := l.statuses[id]
	return s, ok && len(s) > 0 && !l.stale[id]
}

// byName returns the item that has one of names, as its id or as another name.
func (l *list) byName(names []string) ([]byte, bool) {
	for _, name := range names {
		if id, ok := l.resolve(name); ok {
			return l.items.get(id)
		}
	}
	for _, item := range l.items.bodies {
		for _, p := range l.names {
			found := false
			_ = p.All(item, func(v []byte) error {
				found = found || slices.Contains(names, string(v))
				return nil
			})
			if found {
				return item, true
			}
		}
	}
	return nil, false
}

// isOnlyID reports whether a request has nothing in it but id.
func isOnlyID(request, id []byte) bool {
	_, _, n := protowire.ConsumeField(request)
	return n == len(request) && n <= len(id)+1+5
}
