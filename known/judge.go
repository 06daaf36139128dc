package known

import (
	"context"
	"errors"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// call does f on the backend if it is up, and ends it if the backend goes down.
func (c *Conn) call(ctx context.Context, f func(context.Context) error) error {
	epoch, err := c.alive()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(epoch, cancel)()
	err = f(ctx)
	return c.judge(epoch, err)
}

// alive returns the context of the time the backend has been up, or an error if
// it is down.
func (c *Conn) alive() (context.Context, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.state.Up {
		return nil, c.unavailable()
	}
	return c.epoch, nil
}

// unavailable is the error of a call to a backend that is down. c.mu is held.
func (c *Conn) unavailable() error {
	return status.Errorf(codes.Unavailable, "criproxy: backend %s is down since %s: %v",
		c.cfg.Name, c.state.Since.Format(time.TimeOnly), c.state.Err)
}

// judge turns the error of a call that began in epoch into what the client gets,
// and learns from it how the backend is doing.
func (c *Conn) judge(epoch context.Context, err error) error {
	if err == nil {
		return nil
	}
	if epoch.Err() != nil { // it ended because the backend went down
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.state.Up {
			return c.unavailable()
		}
		return status.Errorf(codes.Unavailable, "criproxy: backend %s was down meanwhile: %v", c.cfg.Name, context.Cause(epoch))
	}
	if status.Code(err) == codes.Unavailable && unreachable(err) {
		c.goDown(epoch, err) // who says so itself is looked at with the next lists
	}
	return err
}

// unreachable reports whether err came about on this side, and not from the
// backend.
func unreachable(err error) bool {
	var u interface{ Unreachable() bool }
	return errors.As(err, &u) && u.Unreachable()
}

// goDown marks the backend down, if it is still in epoch.
func (c *Conn) goDown(epoch context.Context, why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.epoch != epoch || !c.state.Up {
		return
	}
	c.state = State{Since: time.Now(), Seen: c.state.Seen, Err: c.reason(why)}
	c.endEpoch(c.state.Err)
	if c.cfg.Watch != nil {
		c.cfg.Watch(c.state)
	}
	c.Check()
}

// reason is why a backend is down, without what every message about it says
// anyway.
func (c *Conn) reason(err error) error {
	message := strings.TrimPrefix(status.Convert(err).Message(), "criproxy: backend "+c.cfg.Name+" ")
	return errors.New(message)
}
