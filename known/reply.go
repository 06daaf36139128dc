package known

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
)

// kept is a Reply, compiled, and what was last replied.
type kept struct {
	spec   Reply
	method *codec.Method

	// Conn.mu guards what follows.
	reply []byte
	known bool
	at    time.Time // when it was asked for
}

func compileReplies(specs []Reply, schema *codec.Schema, pkg string) ([]*kept, error) {
	var all []*kept
	var errs []error
	for i, spec := range specs {
		m := findMethod(schema, pkg, spec.Method)
		if m == nil || !m.Unary() {
			errs = append(errs, fmt.Errorf("known.replies[%d]: no unary method is called %q", i, spec.Method))
			continue
		}
		all = append(all, &kept{spec: spec, method: m})
	}
	return all, errors.Join(errs...)
}

// keptReply answers a call whose reply is kept: the backend does, within the
// budget of a list, or what it said last. That answer is marked, for those who
// must have a fresh one.
func (c *Conn) keptReply(ctx context.Context, k *kept, name string, args, reply any, opts []grpc.CallOption) error {
	request, err := codec.FrameOf(args)
	if err != nil {
		return err
	}
	answer := &codec.Frame{}
	at := time.Now()
	within, cancel := c.withBudget(ctx)
	defer cancel(nil)
	err = c.call(within, func(ctx context.Context) error { return c.next.Invoke(ctx, name, request, answer, opts...) })
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		if request.Len() == 0 && !(k.known && bytes.Equal(k.reply, answer.Bytes())) {
			k.reply, c.news = bytes.Clone(answer.Bytes()), true
		}
		if request.Len() == 0 {
			k.known, k.at = true, at
		}
		return codec.Deliver(reply, answer)
	}
	late := context.Cause(within) == errBudget && !ended(ctx)
	if late {
		c.Check()
		err = status.Errorf(codes.Unavailable, "criproxy: backend %s did not answer %s within %s", c.cfg.Name, name, c.cfg.Budget)
	}
	if ended(ctx) || c.cfg.Policy != LastKnown || c.state.Up && !late {
		return err
	}
	switch {
	case k.known:
		mark(opts, c.cfg.Name)
		return codec.Deliver(reply, codec.NewFrame(bytes.Clone(k.reply)))
	case c.absent():
		mark(opts, c.cfg.Name)
		return codec.Deliver(reply, &codec.Frame{})
	}
	return err
}

// Reply returns what the backend last replied to an empty request of a method
// whose replies are kept, and whether it ever did. The bytes must not be changed.
func (c *Conn) Reply(method string) ([]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.kept {
		if k.spec.Method == method {
			return k.reply, k.known
		}
	}
	return nil, false
}
