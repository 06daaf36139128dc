package lastknown

import (
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
)

// A Note is a call that was made to a backend and may have changed something there. A
// process that has handed over its sockets still makes the calls that it has begun: its
// successor learns of them by notes.
type Note struct {
	Method  string // full name
	Request []byte
	Reply   []byte // nil if the call failed
	OK      bool
}

// HandOn has to called with each Note from now on, before the client gets its answer, until
// HandOn is called again; nil ends that. Calls of to may overlap.
func (m *Memory) HandOn(to func(Note)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.heir = to
}

// Learn takes note of a call that another process has made. It fails if no connection
// remembers in m yet.
func (m *Memory) Learn(n Note) error {
	m.mu.Lock()
	c := m.conn
	m.mu.Unlock()
	if c == nil {
		return errors.New("there is no connection to this backend")
	}
	var err error
	if !n.OK {
		err = status.Error(codes.Unknown, "the call failed")
	}
	c.note(n.Method, codec.NewFrame(n.Request), codec.NewFrame(n.Reply), err)
	return nil
}

// note remembers what a call may have changed. One that failed may have as well.
func (c *Conn) note(method string, args any, answer *codec.Frame, failure error) {
	r := c.roles[method]
	if len(r.changes) == 0 && r.creates == nil {
		return
	}
	frame, err := codec.FrameOf(args)
	if err != nil {
		return
	}
	request := frame.Bytes()
	if heir := c.remember(r, request, answer, failure == nil); heir != nil {
		n := Note{Method: method, Request: request, OK: failure == nil}
		if n.OK {
			n.Reply = answer.Bytes()
		}
		heir(n)
	}
}

// remember does the work of note. It returns the function that takes the Note for another
// process, nil if there is none.
func (c *Conn) remember(r role, request []byte, answer *codec.Frame, ok bool) (heir func(Note)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, l := range r.changes {
		if subject := r.subjects[i]; subject != nil {
			l.change(subject, request, ok, r.removes[i])
		}
	}
	if r.creates != nil && ok {
		if id, found, err := r.created.Lookup(answer.Bytes()); err == nil && found && len(id) > 0 {
			c.mem.meet()
			r.creates.create(string(id), r.draft.of(r.creates.id, id, request, time.Now()))
		}
	}
	for _, l := range r.changes {
		l.touch()
		if l.lag.late() {
			c.askBehind(l)
		}
	}
	c.Check()
	return c.mem.heir
}
