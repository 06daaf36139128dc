package memory

import (
	"errors"
	"time"

	"github.com/criproxy/criproxy/codec"
)

// A Note is a call to a backend that may have changed something there. A process that has handed
// over its sockets still completes the calls that it has begun. It sends its successor a Note of
// each.
type Note struct {
	Method  string // full name
	Request []byte
	Reply   []byte // nil if the call failed
	OK      bool
}

// HandOn calls to with each Note from now on, before the client gets its answer, until HandOn is
// called again; nil ends that. Calls of to may overlap.
func (m *Memory) HandOn(to func(Note)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.successor = to
}

// Learn remembers a call that another process has made. It fails if no connection remembers in
// m yet.
func (m *Memory) Learn(n Note) error {
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
func (c *Conn) noteCall(r role, call *codec.Call, failure error) {
	if len(r.changes) == 0 && r.creates == nil {
		return
	}
	n := Note{Method: call.Method, Request: call.Request.Bytes(), OK: failure == nil}
	if n.OK {
		n.Reply = call.Reply.Bytes()
	}
	c.note(n)
}

// note remembers what a call may have changed, even if it failed, and hands the Note on.
func (c *Conn) note(n Note) {
	if successor := c.remember(c.roles[n.Method], n); successor != nil {
		successor(n)
	}
}

// remember does the work of note. It returns the function that takes the Note for another
// process, nil if there is none.
func (c *Conn) remember(r role, n Note) (successor func(Note)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	shown := map[*list]bool{} // the lists that show the change from memory
	for i, l := range r.changes {
		if subject := r.subjects[i]; subject != nil {
			shown[l] = l.change(subject, n.Request, n.OK, r.removes[i], r.becomes[i])
		}
	}
	if r.creates != nil && n.OK {
		if id, found, err := r.created.Lookup(n.Reply); err == nil && found && len(id) > 0 {
			c.mem.noteAnswer()
			item := r.draft.of(r.creates.id, id, n.Request, time.Now())
			r.creates.create(string(id), item)
			shown[r.creates] = item != nil
		}
	}
	for i, l := range r.changes {
		if at := r.names[i]; at != nil {
			if name, found, err := at.Lookup(n.Request); err == nil && found {
				if n.OK && r.removes[i] {
					shown[l] = l.removeNamed(string(name))
				}
				for _, same := range c.cfg.Equivalents(string(name)) {
					l.renamed[same] = l.asked
				}
			}
		}
		if n.OK && !shown[l] {
			l.invalidate()
		} else {
			l.noteChange()
		}
		if l.lag.late() {
			c.refreshInBackground(l)
		}
	}
	c.Check()
	return c.mem.successor
}
