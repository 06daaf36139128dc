package codec

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// A Call is a unary call. Its maker sets Method and Request, keeps the Request until the call has
// ended, and then reads the other fields and frees Reply. A Call is for one goroutine at a time.
type Call struct {
	Method          string // full name
	Request, Reply  *Frame // Reply counts if there was no error
	Header, Trailer metadata.MD

	WellFormed bool // the connection has checked Reply, and it is well formed
	UTF8       bool // all text in it is UTF-8

	reply Frame // with the call in one allocation
	opts  [2]grpc.CallOption
}

// A Caller is a connection to which a call can be passed on as it is. Its Invoke is [Invoke].
type Caller interface {
	grpc.ClientConnInterface
	Call(ctx context.Context, call *Call) error
}

// Invoke is the Invoke of a Caller, for those who know it only as a [grpc.ClientConnInterface]. args
// and reply are frames or protobuf messages. Of the options only those for header and trailer count.
func Invoke(ctx context.Context, c Caller, name string, args, reply any, opts []grpc.CallOption) error {
	request, err := FrameOf(args)
	if err != nil {
		return err
	}
	call := &Call{Method: name, Request: request}
	err = c.Call(ctx, call)
	header, trailer := MetadataOf(opts)
	if header != nil {
		*header = call.Header
	}
	if trailer != nil {
		*trailer = call.Trailer
	}
	if err != nil {
		return err
	}
	return Decode(reply, call.Reply)
}

// On makes the call on a connection.
func (call *Call) On(ctx context.Context, conn grpc.ClientConnInterface) error {
	if c, ok := conn.(Caller); ok {
		return c.Call(ctx, call)
	}
	call.reply = Frame{}
	call.Reply = &call.reply
	call.opts = [...]grpc.CallOption{grpc.Header(&call.Header), grpc.Trailer(&call.Trailer)}
	return conn.Invoke(ctx, call.Method, call.Request, call.Reply, call.opts[:]...)
}

// OnAs makes the call on a connection with another method and request, and leaves the caller's in the
// Call.
func (call *Call) OnAs(ctx context.Context, conn grpc.ClientConnInterface, name string, request *Frame) error {
	method, asked := call.Method, call.Request
	defer func() { call.Method, call.Request = method, asked }()
	call.Method, call.Request = name, request
	return call.On(ctx, conn)
}

// Answer has the call end as another one has, whose reply it takes over.
func (call *Call) Answer(as *Call) {
	call.Reply, call.Header, call.Trailer = as.Reply, as.Header, as.Trailer
}
