package memory

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc/metadata"

	"github.com/criproxy/criproxy/codec"
)

func isEOF(err error) bool { return errors.Is(err, io.EOF) }

// listStream is a list that a client wants in several messages. It receives the whole list from
// the backend before it hands on the first message, because it could not take back half a list
// if the other half did not come.
type listStream struct {
	ctx   context.Context
	conn  *Conn
	list  *list
	call  codec.Call
	rest  []*codec.Frame
	err   error
	asked bool
}

func (s *listStream) Send(f *codec.Frame) error {
	s.call.Request = f.Ref()
	return nil
}

func (s *listStream) CloseSend() error { return nil }

func (s *listStream) Recv() (*codec.Frame, error) {
	s.ask()
	if s.err != nil {
		return nil, s.err
	}
	return first(&s.rest)
}

func (s *listStream) ask() {
	if s.asked {
		return
	}
	s.asked = true
	if s.call.Request == nil {
		s.call.Request = &codec.Frame{}
	}
	defer s.call.Request.Free()
	if s.err = s.conn.list(s.ctx, s.list, &s.call); s.err == nil {
		s.rest, s.err = s.list.split(s.call.Reply)
	}
}

func (s *listStream) Header() (metadata.MD, error) {
	s.ask()
	return s.call.Header, nil
}

func (s *listStream) Trailer() metadata.MD { return nil }

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
