package backend

import (
	"errors"

	"github.com/criproxy/criproxy/internal/transport"
)

// A link with [Config.Pass] passes every call, and a Backend with such a link keeps nothing: that is for the only backend of a
// node. The link notices when the backend can no longer be reached, or answers nothing, and when it is back. Its conditions are
// [Up] and [Gone]:
//
//	from  event                                                            to
//	      the first connection                                             up
//	up    the connection is refused or ends                                gone
//	up    calls are under way, and none has been answered for Silence      gone
//	gone  it has answered a call, or Alive                                 up
//
// A connection alone ends no outage: a process that hangs accepts connections.

// Reached notes that there is a connection to the backend, or why there is none. A backend of which nothing else is known is up
// with the first connection.
func (c *Link) Reached(err error) {
	c.backend.mu.Lock()
	defer c.backend.mu.Unlock()
	c.backend.Check()
	c.down = err != nil
	switch {
	case c.replaced():
	case err == nil && !c.backend.notified && c.backend.state.Condition == Up && (c.cfg.Pass || c.cfg.Before.Condition == Up):
		c.become(Up, nil)
	case err == nil, !c.cfg.Pass:
	case c.backend.state.Condition == Gone:
		c.backend.state.Err = err
		c.backend.notifyState()
	default:
		c.goneNow(err, false)
	}
}

// watch notes whether the backend is silent or back, and asks it if no call shows that.
func (c *Link) watch() {
	c.backend.mu.Lock()
	defer c.backend.mu.Unlock()
	if c.replaced() {
		return
	}
	c.checkSilence()
	switch {
	case c.backend.state.Condition != Gone, c.down:
	case c.pulse.answers.Load() == c.answers:
		c.probe()
	default:
		close(c.backend.back)
		c.become(Up, nil)
	}
}

// Hangs reports whether a state is [Gone] because the backend answers nothing.
func (s State) Hangs() bool {
	silent := new(transport.SilentError)
	return errors.As(s.Err, &silent)
}
