package replay

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
)

// answer is what a call returned.
type answer struct {
	replies [][]byte
	err     error // nil if Run ended the call
}

// send makes a recorded call.
func (r *run) send(ctx context.Context, c *Call) *answer {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if c.Timeout > 0 && !c.open() {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, c.Timeout)
		defer stop()
	}
	ctx = metadata.NewOutgoingContext(ctx, pairs(c.Metadata))
	stream, err := r.Conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, c.Method, grpc.ForceCodecV2(codec.Raw))
	if err != nil {
		return &answer{err: err}
	}
	came := newLevel(0) // number of replies so far
	var sending sync.WaitGroup
	defer sending.Wait()
	defer cancel()
	sending.Go(func() { r.requests(ctx, stream, c, came) })
	if c.open() {
		// End the stream once all other calls are done and it has brought as many messages as recorded.
		defer context.AfterFunc(r.ending, cancel)()
		defer context.AfterFunc(r.calm, func() {
			if came.reach(ctx, len(c.Replies)) == nil {
				cancel()
			}
		})()
	}
	got := &answer{}
	for {
		f := &codec.Frame{}
		if err := stream.RecvMsg(f); err != nil {
			if cut := c.open() && r.calm.Err() != nil && status.Code(err) == codes.Canceled; !cut && !errors.Is(err, io.EOF) {
				got.err = err
			}
			return got
		}
		got.replies = append(got.replies, bytes.Clone(f.Bytes()))
		f.Free()
		came.raise(len(got.replies))
	}
}

// requests sends the requests of a call. It sends each when as many replies have come as had come before it in the
// recording.
func (r *run) requests(ctx context.Context, stream grpc.ClientStream, c *Call, came *level[int]) {
	method := r.Schema.Method(c.Method)
	for _, m := range c.Requests {
		before := 0
		for _, reply := range c.Replies {
			if reply.When < m.When {
				before++
			}
		}
		if came.reach(ctx, before) != nil {
			return
		}
		payload := m.Payload
		if method != nil {
			payload = r.ids.request(method.Input, payload)
		}
		if stream.SendMsg(codec.NewFrame(bytes.Clone(payload))) != nil {
			return // the receiver learns why
		}
	}
	if !c.open() || method == nil || !method.ClientStreams {
		_ = stream.CloseSend() // the receiver learns what is wrong
	}
}
