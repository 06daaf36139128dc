package memory

import (
	"errors"
	"slices"
	"time"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/inventory"
)

// HandOn calls to with each Note from now on, before the client gets its answer, until HandOn is called again. Calls of to
// may overlap. A process that has handed over its sockets still completes calls, of which its successor must know.
func (m *Memory) HandOn(to func(inventory.Note)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.successor = to
}

// Learn remembers a call that another process has made. It fails if no connection remembers in m yet.
func (m *Memory) Learn(n inventory.Note) error {
	m.mu.Lock()
	c := m.conn
	m.mu.Unlock()
	if c == nil {
		return errors.New("there is no connection to this backend")
	}
	c.note(n)
	return nil
}

// noteCall notes a call that the backend got, if it may have changed something.
func (c *Conn) noteCall(call *codec.Call, failure error) {
	if !c.plan.Changes(call.Method) {
		return
	}
	n := inventory.Note{Method: call.Method, Request: call.Request.Bytes(), OK: failure == nil}
	if n.OK {
		n.Reply = call.Reply.Bytes()
	}
	c.note(n)
}

// note remembers what a call may have changed, even if it failed, and hands the Note on.
func (c *Conn) note(n inventory.Note) {
	if successor := c.remember(n); successor != nil {
		successor(n)
	}
}

// remember does the work of note. It returns the function that takes the Note for another process, nil if there is none.
func (c *Conn) remember(n inventory.Note) (successor func(inventory.Note)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	changed := c.mem.inv.Note(c.plan, n, time.Now())
	if n.OK {
		c.mem.noteAnswer()
	}
	for _, l := range c.lists {
		if l.lag.late() && slices.Contains(changed, l.Listing) {
			c.refreshInBackground(l)
		}
	}
	c.Check()
	return c.mem.successor
}
