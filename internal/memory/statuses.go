package memory

import (
	"bytes"
	"context"
	"errors"
	"path"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/rewrite"
)

// statusOf answers a status call, from the backend if that answers within its budget, otherwise
// from memory.
func (c *Conn) statusOf(ctx context.Context, l *list, call *codec.Call) error {
	body := call.Request.Bytes()
	named, _, err := l.status.id.Lookup(body)
	if err != nil {
		return err
	}
	id := string(named)
	c.mu.Lock()
	l.settleWhole()
	asked := l.begin()
	late := c.state.Condition != Gone && l.status.lag.late() && c.usableStatus(l, id)
	if late { // ask for it in the background
		l.status.wanted[id] = true
		c.Check()
	}
	c.mu.Unlock()
	err = errRemembered
	if !late {
		a := &attempt{method: call.Method, lag: &l.status.lag, anyAnswer: true, usable: func(bool) bool { return c.usableStatus(l, id) }}
		err = c.try(ctx, a, func(ctx context.Context) error { return c.next.Call(ctx, call) })
	}
	if err == nil {
		c.answered()
		if l.asksStatus() && isOnlyID(body, named) {
			c.keep(l, id, asked, call.Reply.Bytes())
		}
		return nil
	}
	if c.cfg.Policy != LastKnown || ended(ctx) && !errors.Is(err, errRemembered) || ours(err) || aboutTheRequest(err) {
		return err
	}
	if l.status.wrap != 0 && c.hasNothing(ctx) {
		call.Reply = &codec.Frame{}
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// The error of a backend that is up is its answer. A slow backend is most likely starting, or
	// in trouble, and memory knows better.
	if c.state.Condition == Up && !errors.Is(err, errRemembered) {
		return err
	}
	if known, ok := c.statusFromMemory(l, id); ok {
		c.mark(ctx, call.Method, call)
		call.Reply = codec.NewFrame(known)
		return nil
	}
	if c.state.Condition == Gone || errors.Is(err, errRemembered) {
		return c.unavailable()
	}
	return err
}

// usableStatus reports whether memory can answer for a backend that is late with the status of an
// item. c.mu is held.
func (c *Conn) usableStatus(l *list, id string) bool {
	if c.cfg.Policy != LastKnown || l.status.wrap != 0 && l.stale() {
		return false
	}
	_, ok := c.statusFromMemory(l, id)
	return ok
}

// keep remembers the status of an item, which request asked has asked for, unless the item is not
// listed, or memory has a later status, or one where now there is none: a runtime whose state is
// damaged may answer NotFound to everything.
func (c *Conn) keep(l *list, id string, asked uint64, reply []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mem.bytes()+len(reply) > c.cfg.MaxBytes {
		return
	}
	l.settleWhole()
	k := l.statuses[id]
	if _, listed := l.items.get(id); !listed || asked <= k.asked || len(reply) == 0 && k.fresh() {
		return
	}
	l.news = l.news || !k.fresh()
	k.asked = asked
	if k.reply == nil || !same(l.status.method.Output, k.reply, reply) {
		l.news = l.news || k.reply == nil || !l.stamps.same(l.status.method.Output, k.reply, reply)
		k.reply = append([]byte{}, reply...)
	}
	l.statuses[id] = k
}

// statusFromMemory returns the reply to a status call, if memory has it. If the status of an item
// is the item itself, and the item is not listed, then there is no such item: the reply is empty.
// A status from before the item changed does not count, because a client asks when a list shows a
// change, and would take the old status for the new one. c.mu is held.
func (c *Conn) statusFromMemory(l *list, name string) ([]byte, bool) {
	l.settleWhole()
	if l.status.wrap != 0 {
		names := c.cfg.Equivalents(name)
		if slices.ContainsFunc(names, func(name string) bool { _, is := l.renamed[name]; return is }) {
			return nil, false // it was pulled or removed after the list
		}
		item, ok := l.byName(names)
		if !ok {
			return nil, l.complete
		}
		return protowire.AppendBytes(protowire.AppendTag(nil, protowire.Number(l.status.wrap), protowire.BytesType), item), true
	}
	id, ok := l.resolve(name)
	k := l.statuses[id]
	return k.reply, ok && len(k.reply) > 0 && k.fresh()
}

// byName returns the item that has one of names, as its id or as one of its other names.
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

// A subject says which items of a list a call changes: those that have the same name at the path
// item as the request has at the path request.
type subject struct {
	request *rewrite.Path
	item    *rewrite.Path // nil: it is the item's id, or the beginning of it
}

// subject returns what a method changes in l. If its request has the field in which a status
// request names the item, that is the item. Otherwise, if its request has a field by which a filter
// of l finds items, it is those items. It is nil if there is no such field.
func (l *list) subject(m *codec.Method) *subject {
	if _, creates := l.spec.Created[path.Base(m.Name)]; creates || !l.asksStatus() {
		return nil // a new item changes no other
	}
	if p, err := rewrite.ParseTextPath(m.Input, l.spec.Status.ID); err == nil {
		return &subject{request: p}
	}
	for i, f := range l.spec.Filters {
		if f.Of != "" || f.Match != "prefix" || f.Item == l.spec.ID {
			continue
		}
		if p, err := rewrite.ParseTextPath(m.Input, f.Item); err == nil {
			return &subject{p, l.filters[i].item}
		}
	}
	return nil
}

// nameIn returns where the request of m names an item whose status is the item itself. It is nil
// if the request names none.
func (l *list) nameIn(m *codec.Method) *rewrite.Path {
	if l.status == nil || l.status.wrap == 0 {
		return nil
	}
	p, err := rewrite.ParseTextPath(m.Input, l.spec.Status.ID)
	if err != nil {
		return nil
	}
	return p
}

// change notes that a call has changed or removed the items that its request names, or may have
// done so if it failed. The remembered statuses of these items are out of date, or must be asked
// for again. Only an exact name removes an item. It may be one that is not listed, because a late
// answer may list it. What the items become is in becomes. shown reports whether they show the whole change now.
func (l *list) change(s *subject, request []byte, changed, removes bool, becomes *becomes) (shown bool) {
	name, ok, err := s.request.Lookup(request)
	if err != nil || !ok || len(name) == 0 {
		return false
	}
	l.settle()
	shown = changed && becomes != nil // unless an item has a state of which this is unknown
	mark := func(id string) {
		item, _ := l.items.get(id)
		if changed {
			l.changesWhole(item)
			shown = l.become(id, becomes) && shown
			l.outdate(id) // the file must not hold the old status either
			return
		}
		l.status.wanted[id] = true
		if whole, ok := l.wholeOf(item); ok {
			l.whole.status.wanted[whole] = true
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
			return shown
		}
		return removed || shown
	}
	if removed {
		mark = l.remove
		l.emptied[string(name)] = emptied{s.item, l.asked}
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
	return removed || shown
}

// settleWhole calls settle for a list and for the lists of its parts, because a change of a part
// makes the status of its whole out of date.
func (l *list) settleWhole() {
	l.settle()
	for _, part := range l.parts {
		part.settle()
	}
}

// changesWhole notes that an item has changed. The status of its whole is out of date then.
func (l *list) changesWhole(item []byte) {
	if id, ok := l.wholeOf(item); ok {
		l.whole.outdate(id)
	}
}

// wholeOf returns the id of the listed item of which an item is a part.
func (l *list) wholeOf(item []byte) (id string, ok bool) {
	if l.whole == nil {
		return "", false
	}
	named, _, err := l.wholeID.Lookup(item)
	l.whole.settle()
	_, ok = l.whole.items.get(string(named))
	return string(named), ok && err == nil
}

// answersNothing reports whether err says that the item has no status.
func answersNothing(err error) bool {
	return aboutTheRequest(err) || status.Code(err) == codes.Unimplemented
}
