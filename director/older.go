package director

import (
	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/profile"
)

// olderClient is the stream of a client that speaks an older version of the API. Inside the director
// its messages are those of the newest.
type olderClient struct {
	grpc.ServerStream
	to *profile.Translation
}

func (s *olderClient) RecvMsg(m any) error {
	f := codec.ReplyFrame(m)
	if err := s.ServerStream.RecvMsg(f); err != nil {
		return err
	}
	f, err := s.to.Request(f)
	if err != nil {
		return internal(s.to.Method, err)
	}
	return codec.Decode(m, f)
}

func (s *olderClient) SendMsg(m any) error {
	f, err := codec.FrameOf(m)
	if err != nil {
		return err
	}
	if f, err = s.to.Reply(f.Ref()); err != nil {
		return internal(s.to.Method, err)
	}
	defer f.Free()
	return s.ServerStream.SendMsg(f)
}
