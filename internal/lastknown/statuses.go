package lastknown

import (
	"bytes"
	"context"
	"errors"
	"path"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/rewrite"
)

// statusOf answers a status call: the backend does, within its budget, or memory.
func (c *Conn) statusOf(ctx context.Context, l *list, name string, args, reply any, opts []grpc.CallOption) error {
	request, err := codec.FrameOf(args)
	if err != nil {
		return err
	}
	body := request.Bytes()
	named, _, err := l.status.id.Lookup(body)
	if err != nil {
		return err
	}
	id := string(named)
	c.mu.Lock()
	l.settleWhole()
	item, _ := l.items.get(id)
	asked := l.outdatings
	late := c.state.Condition != Gone && l.status.lag.late() && c.usableStatus(l, id)
	if late { // and its answer is asked for behind the scenes
		l.status.wanted[id] = true
		c.Check()
	}
	c.mu.Unlock()
	err = errRemembered
	answer := &codec.Frame{}
	if !late {
		a := &attempt{method: name, lag: &l.status.lag, anyAnswer: true, usable: func(bool) bool { return c.usableStatus(l, id) }}
		err = c.try(ctx, a, func(ctx context.Context) error { return c.next.Invoke(ctx, name, request, answer, opts...) })
	}
	if err == nil {
		c.meets()
		if l.asksStatus() && isOnlyID(body, named) {
			c.keep(l, id, item, asked, answer)
		}
		return codec.Deliver(reply, answer)
	}
	if c.cfg.Policy != LastKnown || ended(ctx) && !errors.Is(err, errRemembered) || ours(err) || aboutTheRequest(err) {
		return err
	}
	if l.status.wrap != 0 && c.hasNothing(ctx) {
		return codec.Deliver(reply, &codec.Frame{})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// An error of one that is up is its answer. While its lists do not come it is most
	// likely starting, or in trouble.
	if c.state.Condition == Up && !errors.Is(err, errRemembered) {
		return err
	}
	if known, ok := c.statusFromMemory(l, id); ok {
		c.mark(name, opts)
		return codec.Deliver(reply, codec.NewFrame(known))
	}
	if c.state.Condition == Gone || errors.Is(err, errRemembered) {
		return c.unavailable()
	}
	return err
}

// usableStatus reports whether memory has the status of an item, in place of a backend
// that is late with it. c.mu is held.
func (c *Conn) usableStatus(l *list, id string) bool {
	if c.cfg.Policy != LastKnown || l.status.wrap != 0 && l.dirty() {
		return false
	}
	_, ok := c.statusFromMemory(l, id)
	return ok
}

// keep remembers the status of an item that was asked for when it was listed as item, and
// after so many calls that changed something. If it is listed otherwise by now, or was
// changed since, the status may be older than that, and older than
// the one that is remembered. Of what is not listed nothing is remembered.
func (c *Conn) keep(l *list, id string, item []byte, asked uint64, answer *codec.Frame) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mem.bytes()+answer.Len() > c.cfg.MaxBytes {
		return
	}
	l.settleWhole()
	if now, listed := l.items.get(id); !listed || !same(l.item, now, item) || l.outdated[id] > asked {
		return
	}
	delete(l.outdated, id)
	l.news = l.news || l.stale[id]
	delete(l.stale, id)
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
	l.settleWhole()
	if l.status.wrap != 0 {
		names := c.cfg.Equivalents(name)
		if slices.ContainsFunc(names, func(name string) bool { _, is := l.renamed[name]; return is }) {
			return nil, false // it was pulled or removed since the list
		}
		item, ok := l.byName(names)
		if !ok {
			return nil, l.complete
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

// A subject says which items of a list a call changes: those that have, at one path, the
// name that its request has at another.
type subject struct {
	request *rewrite.Path
	item    *rewrite.Path // nil: it is the item's id, or the beginning of it
}

// subject returns what a method changes in l: the item that its request names in the field
// that the request for a status has, too, or else all items that a filter of l would find
// by a field that the request has. It is nil if there is no such field.
func (l *list) subject(m *codec.Method) *subject {
	if _, creates := l.spec.Created[path.Base(m.Name)]; creates || !l.asksStatus() {
		return nil // what is new changes nothing that was there
	}
	if p, err := textPath(m.Input, l.spec.Status.ID); err == nil {
		return &subject{request: p}
	}
	for i, f := range l.spec.Filters {
		if f.Of != "" || f.Match != "prefix" || f.Item == l.spec.ID {
			continue
		}
		if p, err := textPath(m.Input, f.Item); err == nil {
			return &subject{p, l.filters[i].item}
		}
	}
	return nil
}

// nameIn returns where the request of m has the name of an item whose status is the item itself,
// nil if that does not have it.
func (l *list) nameIn(m *codec.Method) *rewrite.Path {
	if l.status == nil || l.status.wrap == 0 {
		return nil
	}
	p, err := textPath(m.Input, l.spec.Status.ID)
	if err != nil {
		return nil
	}
	return p
}

// change takes note that a call has changed or removed what its request names, or may
// have: the statuses that are remembered are older, or are to be asked for. Only an exact name
// removes an item, also one that is not listed: an answer that comes late may list it.
func (l *list) change(s *subject, request []byte, changed, removes bool) {
	name, ok, err := s.request.Lookup(request)
	if err != nil || !ok || len(name) == 0 {
		return
	}
	l.settle()
	l.outdatings++
	mark := func(id string) {
		if item, ok := l.items.get(id); ok {
			l.changesWhole(item, changed)
		}
		l.outdated[id] = l.outdatings
		if changed {
			l.stale[id], l.news = true, true // the file must not tell the old status either
		} else {
			l.status.wanted[id] = true
		}
	}
	removed := changed && removes
	if s.item == nil {
		id, ok := l.resolve(string(name))
		if removed {
			l.remove(string(name))
		}
		if ok && !(removed && id == string(name)) {
			mark(id)
		}
		return
	}
	if removed {
		mark = l.remove
	}
	var marked []string
	for id, body := range l.items.all() {
		if got, _, err := s.item.Lookup(body); err == nil && bytes.HasPrefix(got, name) && (len(got) == len(name) || !removes) {
			marked = append(marked, id)
		}
	}
	for _, id := range marked {
		mark(id)
	}
}

// settleWhole is settle for a list and those of its parts, whose changes make its statuses old.
func (l *list) settleWhole() {
	l.settle()
	for _, part := range l.parts {
		part.settle()
	}
}

// changesWhole takes note that an item has changed, or may have: so has the status of the item
// that it is a part of.
func (l *list) changesWhole(item []byte, changed bool) {
	if l.whole == nil {
		return
	}
	id, _, err := l.wholeID.Lookup(item)
	if err != nil || len(id) == 0 {
		return
	}
	w := l.whole
	w.settle()
	if _, listed := w.items.get(string(id)); !listed {
		return
	}
	w.outdatings++
	w.outdated[string(id)] = w.outdatings
	if changed {
		w.stale[string(id)], w.news = true, true
	} else {
		w.status.wanted[string(id)] = true
	}
}

// answersNothing reports whether err says that there is no such status.
func answersNothing(err error) bool {
	return aboutTheRequest(err) || status.Code(err) == codes.Unimplemented
}
