package backend

import (
	"slices"
	"time"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/inventory"
)

// HandOn calls to with each Note from now on, before the client gets its answer, until HandOn is called again. Calls of to
// may overlap. A process that has handed over its sockets still completes calls, of which its successor must know.
func (b *Backend) HandOn(to func(inventory.Note)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.successor = to
}

// noteCall notes a call that the backend got, if it may have changed something.
func (c *Link) noteCall(call *codec.Call, failure error) {
	if !c.plan.Changes(call.Method) {
		return
	}
	n := inventory.Note{Method: call.Method, Request: call.Request.Bytes(), OK: failure == nil}
	if n.OK {
		n.Reply = call.Reply.Bytes()
	}
	c.backend.Learn(n)
}

// Learn notes what a call may have changed, even if it failed: one of this process, or of another one. It hands the Note on.
func (b *Backend) Learn(n inventory.Note) {
	if successor := b.learn(n); successor != nil {
		successor(n)
	}
}

// learn does the work of Learn. It returns the function that takes the Note for another process, nil if there is none.
func (b *Backend) learn(n inventory.Note) (successor func(inventory.Note)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.current.Load()
	changed := b.inv.Note(c.plan, n, time.Now())
	if n.OK {
		b.noteAnswer()
	}
	for _, l := range c.lists {
		if l.lag.late() && slices.Contains(changed, l.Listing) {
			c.updateInBackground(l)
		}
	}
	b.Check()
	return b.successor
}
