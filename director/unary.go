package director

import (
	"context"
	"io"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/profile"
)

// unary is a call of a unary method that the client makes as a stream. It merges the replies of several
// backends into one message, as every unary call does.
//
// A goroutine makes the call, because Send must not wait for the reply. It ends with the call.
type unary struct {
	method *method
	call   codec.Call
	err    error
	ended  chan struct{} // closed when call and err are set

	sent     atomic.Bool // the stream has sent the request
	received bool        // the stream has received the reply
}

func (t *table) unary(ctx context.Context, cancel context.CancelFunc, m *method, request *codec.Frame) codec.Stream {
	u := &unary{method: m, call: codec.Call{Method: m.Name, Request: request.Ref()}, ended: make(chan struct{})}
	go func() {
		defer cancel() // a client that wants one reply does not wait for io.EOF
		defer close(u.ended)
		defer u.call.Request.Free()
		u.err = t.panics.Do(m.Name, func() error { return t.call(ctx, &u.call) })
	}()
	return u
}

// Send takes the request, which the call has already.
func (u *unary) Send(*codec.Frame) error {
	if u.sent.Swap(true) {
		return status.Errorf(codes.Internal, "criproxy: %s: the client sent a second request, and the method takes one", profile.ShortName(u.method.Name))
	}
	return nil
}

func (u *unary) Recv() (*codec.Frame, error) {
	<-u.ended
	switch {
	case u.err != nil:
		return nil, u.err
	case u.received:
		return nil, io.EOF
	}
	u.received = true
	return u.call.Reply, nil
}

func (u *unary) Header() (metadata.MD, error) {
	<-u.ended
	return u.call.Header, nil
}

func (u *unary) Trailer() metadata.MD {
	<-u.ended
	return u.call.Trailer
}

func (u *unary) CloseSend() error { return nil }
