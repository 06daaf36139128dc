package director

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/base/buffers"
	"github.com/criproxy/criproxy/internal/profile"
	"github.com/criproxy/criproxy/rewrite"
)

// failed turns the error of a call into the status that the client gets. The status of a
// backend passes as it is: clients look at its code and at its message.
// The director's own errors get their status here and nowhere else.
func failed(m *method, err error) error {
	var route *routeError
	var bad *rewrite.MalformedError
	switch {
	case errors.As(err, &route):
		return status.Errorf(route.code, "criproxy: %s: %s", profile.ShortName(m.Name), route.reason)
	case errors.As(err, &bad):
		return internal(m.Name, err)
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.FromContextError(err).Err()
}

// internal returns the status for a message that cannot be read.
func internal(name string, err error) error {
	return status.Errorf(codes.Internal, "criproxy: %s: %v", profile.ShortName(name), err)
}

// unicast makes a call on one backend. The client gets its reply with front names, and its header, trailer and status as they
// are.
func (t *table) unicast(ctx context.Context, m *method, backend int, call *codec.Call) error {
	err := t.invoke(ctx, m, backend, call)
	if err == nil {
		call.Reply, err = t.toFront(m, backend, call.Reply)
	}
	if err == nil && m.fromCache(call) {
		err = m.addSums(backend, call)
	}
	return err
}

// invoke gets the reply of one backend, with back names.
func (t *table) invoke(ctx context.Context, m *method, backend int, call *codec.Call) error {
	request, err := t.toBack(m, backend, call.Request)
	if err != nil {
		return err
	}
	return call.OnAs(ctx, t.calls[backend], m.Name, request)
}

// toBack returns the request with back names. The request that it gets stays with the caller,
// which may send it to other backends as well.
func (t *table) toBack(m *method, backend int, request *codec.Frame) (*codec.Frame, error) {
	for _, w := range m.withhold {
		var err error
		if request, err = w.from(backend, t.backends[backend], m.Name, request); err != nil {
			return nil, err
		}
	}
	if key := t.notes.keys[backend]; m.noted != nil && key != "" {
		var err error
		if request, err = m.noted.write(backend, key, request); err != nil {
			return nil, err
		}
	}
	if !m.toBack[backend] {
		return request, nil
	}
	return apply(m.request, request, t.backEdits[backend])
}

// toFront returns the reply with front names. It takes ownership of the reply that it gets.
func (t *table) toFront(m *method, backend int, reply *codec.Frame) (*codec.Frame, error) {
	reply, err := t.readNotes(m, backend, reply)
	if err != nil {
		return nil, t.broken(backend, err)
	}
	if !m.toFront[backend] {
		return reply, nil
	}
	edited, err := apply(m.reply, reply, t.frontEdits[backend])
	reply.Free()
	if err != nil {
		return nil, t.broken(backend, err)
	}
	return edited, nil
}

// apply is [rewrite.Plan.Apply] on frames, into pooled memory.
func apply(plan *rewrite.Plan, in *codec.Frame, edit rewrite.Edit) (*codec.Frame, error) {
	src := in.Bytes()
	out, err := buffers.Fill(len(src)+len(src)/8+64, func(dst []byte) ([]byte, error) { // with room for some prefixes
		return plan.Apply(dst, src, edit)
	})
	if err != nil {
		return nil, err
	}
	return codec.FrameOfBuffers(out), nil
}
