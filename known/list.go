package known

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
)

// list answers a list: the backend does, within its budget, or what is known of
// it. name is the unary or the streaming method; both have the same request.
func (c *Conn) list(ctx context.Context, l *list, name string, request *codec.Frame, opts []grpc.CallOption) (*codec.Frame, error) {
	answer, err := c.ask(ctx, l, name, request, opts)
	if errors.Is(err, errCameBack) {
		answer, err = c.ask(ctx, l, name, request, opts)
	}
	if err == nil {
		return answer, nil
	}
	c.mu.Lock()
	asIs := ended(ctx) || c.state.Up && (isTheCallsOwn(err) || c.cfg.Policy != LastKnown || !l.complete)
	c.mu.Unlock()
	if asIs {
		return nil, err
	}
	return c.remembered(ctx, l, request, err, opts)
}

// errCameBack is the error of a list during which the backend went and came back.
var errCameBack = status.Error(codes.Unavailable, "criproxy: the backend went down and came back meanwhile")

// errBudget is the cause of a list that took too long.
var errBudget = errors.New("over its budget")

// ask asks the backend, and remembers what it answers.
func (c *Conn) ask(ctx context.Context, l *list, name string, request *codec.Frame, opts []grpc.CallOption) (*codec.Frame, error) {
	epoch, err := c.alive()
	if err != nil {
		return nil, err
	}
	all := l.unfiltered(request.Bytes())
	c.mu.Lock()
	seq, at := l.begin(), time.Now()
	c.mu.Unlock()

	within, cancel := c.withBudget(ctx)
	defer cancel(nil)
	defer context.AfterFunc(epoch, func() { cancel(context.Cause(epoch)) })()
	answer, err := c.fetch(within, l, name, request, opts)
	if err != nil {
		switch {
		case ended(ctx):
			return nil, err // the client has gone, or had less time than the budget
		case context.Cause(within) == errBudget:
			err = status.Errorf(codes.Unavailable, "criproxy: backend %s did not answer %s within %s", c.cfg.Name, name, c.cfg.Budget)
			if l.spec.Gate {
				c.goDown(epoch, err)
			}
			return nil, err
		case epoch.Err() != nil:
			if c.State().Up {
				return nil, errCameBack
			}
			return nil, c.judge(epoch, err)
		case isTheCallsOwn(err) && !(noService(err) && all):
			return nil, err
		case l.spec.Gate:
			c.goDown(epoch, err)
			return nil, err
		default:
			return nil, c.judge(epoch, err)
		}
	}
	see := func() (lacks bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		switch {
		case c.epoch != epoch: // older than what has been seen since
		case all:
			l.observe(seq, at, answer)
			c.seeLocked() // what a client was told must stay, from the first answer on
		case seq > l.answered:
			lacks = l.merge(seq, request.Bytes(), answer.Bytes())
		}
		return lacks
	}
	if see() {
		// Something is no longer as it was, or no longer there: which of the two only
		// the whole list tells. The client must not know more than we do.
		whole, err := c.ask(ctx, l, name, &codec.Frame{}, nil)
		if err != nil && !isTheCallsOwn(err) {
			return nil, err
		} else if err == nil {
			whole.Free()
		}
	}
	return answer, nil
}

// renew asks the backend for all of a list, for what is known of it.
func (c *Conn) renew(ctx context.Context, l *list) {
	if answer, err := c.ask(ctx, l, l.anyMethod().Name, &codec.Frame{}, nil); err == nil {
		answer.Free()
	}
}

// withBudget returns a context that ends when a list has taken too long. The
// backend does not see it as a deadline, so that it is not the one who says so.
func (c *Conn) withBudget(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(c.cfg.Budget, func() { cancel(errBudget) })
	return ctx, func(cause error) {
		timer.Stop()
		cancel(cause)
	}
}

// ended reports whether a client has gone or its deadline has passed, of which a
// backend may know earlier than our own timer.
func ended(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(deadline)
}

// noService reports whether a backend has no such method. Of a list without a filter that
// is not the request's fault: its service is not there, as that of a containerd whose CRI
// plugin does not load.
func noService(err error) bool { return status.Code(err) == codes.Unimplemented }

// isTheCallsOwn reports whether an error says something about the request, and
// not about how the backend is doing.
func isTheCallsOwn(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.NotFound, codes.Unimplemented, codes.ResourceExhausted, codes.PermissionDenied, codes.Unauthenticated:
		return true
	}
	return false
}

// fetch does a list by its unary or its streaming method, and returns its items
// in one message.
func (c *Conn) fetch(ctx context.Context, l *list, name string, request *codec.Frame, opts []grpc.CallOption) (*codec.Frame, error) {
	if l.stream == nil || name != l.stream.Name {
		answer := &codec.Frame{}
		if err := c.next.Invoke(ctx, name, request, answer, opts...); err != nil {
			return nil, err
		}
		return answer, nil
	}
	return collect(ctx, c.next, name, request, opts)
}

func isEOF(err error) bool { return errors.Is(err, io.EOF) }

// remembered answers a list for a backend that did not, because of err.
func (c *Conn) remembered(ctx context.Context, l *list, request *codec.Frame, err error, opts []grpc.CallOption) (*codec.Frame, error) {
	if c.cfg.Policy == Fail {
		return nil, status.Error(codes.Unavailable, status.Convert(err).Message())
	}
	if c.cfg.Policy == Skip {
		return &codec.Frame{}, nil
	}
	if wait := c.mustBeSeen(); wait > 0 {
		timeout := time.NewTimer(wait)
		defer timeout.Stop()
		select {
		case <-c.seen:
			return c.list(ctx, l, l.anyMethod().Name, request, opts)
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		case <-timeout.C:
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.state.Seen {
		switch {
		case c.unsure != nil:
			return nil, status.Errorf(codes.Unavailable, "criproxy: backend %s may have items that nobody remembers: %v; and it cannot be asked: %v", c.cfg.Name, c.unsure, c.state.Err)
		case c.cfg.Required:
			return nil, status.Errorf(codes.Unavailable, "criproxy: backend %s is required, has never been seen on this node, and did not come within %s: %v", c.cfg.Name, c.cfg.RequiredWait, c.state.Err)
		}
		return &codec.Frame{}, nil // it has nothing that anybody knows of
	}
	for _, l := range c.lists { // a filter may look into another list
		l.settle()
	}
	if !l.complete && l.spec.Gate {
		return nil, status.Errorf(codes.Unavailable, "criproxy: backend %s is down, and what it has is not known: it had not answered yet, or has more items than fit in the %d bytes of memory it may take: %v", c.cfg.Name, c.cfg.MaxBytes, c.state.Err)
	}
	matches, err := l.matcher(request.Bytes())
	if err != nil {
		return nil, err
	}
	mark(opts, c.cfg.Name)
	return codec.NewFrame(l.reply(matches)), nil
}

// mustBeSeen returns how long a list waits for a backend that was never seen.
func (c *Conn) mustBeSeen() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.state.Seen && (c.cfg.Required || c.unsure != nil) {
		return c.cfg.RequiredWait
	}
	return 0
}

func (l *list) anyMethod() *codec.Method {
	if l.unary != nil {
		return l.unary
	}
	return l.stream
}

// listStream is a list that a client wants in several messages. It is received
// from the backend as a whole before the first is handed on: half a list cannot
// be taken back when the other half does not come.
type listStream struct {
	ctx     context.Context
	conn    *Conn
	list    *list
	name    string
	opts    []grpc.CallOption
	request *codec.Frame
	header  metadata.MD
	rest    []*codec.Frame
	err     error
	asked   bool
}

func (s *listStream) SendMsg(m any) error {
	f, err := codec.FrameOf(m)
	if err != nil {
		return err
	}
	s.request = f.Ref()
	return nil
}

func (s *listStream) CloseSend() error { return nil }

func (s *listStream) RecvMsg(m any) error {
	s.ask()
	if s.err != nil {
		return s.err
	}
	if len(s.rest) == 0 {
		return io.EOF
	}
	f := s.rest[0]
	s.rest = s.rest[1:]
	return codec.Deliver(m, f)
}

func (s *listStream) ask() {
	if s.asked {
		return
	}
	s.asked = true
	if s.request == nil {
		s.request = &codec.Frame{}
	}
	defer s.request.Free()
	answer, err := s.conn.list(s.ctx, s.list, s.name, s.request, append(slices.Clip(s.opts), grpc.Header(&s.header)))
	if err != nil {
		s.err = err
		return
	}
	s.rest, s.err = s.list.split(answer)
}

func (s *listStream) Header() (metadata.MD, error) {
	s.ask()
	return s.header, nil
}

func (s *listStream) Trailer() metadata.MD     { return nil }
func (s *listStream) Context() context.Context { return s.ctx }

// batch is how many bytes of items a message of a stream holds, at least one
// item. It is below gRPC's default limit of 4 MiB.
const batch = 1 << 20

// split cuts a list into messages.
func (l *list) split(answer *codec.Frame) ([]*codec.Frame, error) {
	if answer.Len() == 0 {
		return nil, nil
	}
	if answer.Len() <= batch {
		return []*codec.Frame{answer}, nil
	}
	body := answer.Bytes()
	var parts []*codec.Frame
	for begin, i := 0, 0; i < len(body); {
		field := next(body[i:])
		if field == nil {
			return nil, fmt.Errorf("splitting a list: malformed at byte %d", i)
		}
		i += len(field)
		if i-begin >= batch || i == len(body) {
			parts = append(parts, codec.NewFrame(body[begin:i]))
			begin = i
		}
	}
	return parts, nil
}
