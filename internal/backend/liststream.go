package backend

import (
	"context"
	"fmt"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/base/wire"
)

// listStream answers a list that a client wants in several messages. It has the whole list before it hands on the first one,
// because it could not take back half a list if the other half did not come.
func (c *Link) listStream(ctx context.Context, l *list, name string, request *codec.Frame) codec.Stream {
	if request == nil {
		request = &codec.Frame{}
	}
	call := &codec.Call{Method: name, Request: request}
	return streamOf(call, c.onNextLink(ctx, call, c.list(ctx, l, call)))
}

// streamOf returns a call, whose reply is the list, as a stream. The call has ended with err.
func streamOf(call *codec.Call, err error) codec.Stream {
	if err != nil {
		return call.Ended(nil, err)
	}
	return call.Ended(split(call.Reply))
}

// batch is how many bytes of items a message of a stream holds, at least one item. It is below gRPC's limit of 4 MiB.
const batch = 1 << 20

// split cuts a list into messages.
func split(answer *codec.Frame) ([]*codec.Frame, error) {
	if answer.Len() == 0 {
		return nil, nil
	}
	if answer.Len() <= batch {
		return []*codec.Frame{answer}, nil
	}
	body := answer.Bytes()
	var parts []*codec.Frame
	begin, end := 0, 0
	for f, err := range wire.Fields(body) {
		if err != nil {
			return nil, fmt.Errorf("splitting a list after byte %d: %w", end, err)
		}
		if end += len(f.Raw); end-begin >= batch || end == len(body) {
			parts = append(parts, codec.NewFrame(body[begin:end]))
			begin = end
		}
	}
	return parts, nil
}
