package backend

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/rewrite"
)

// check is wellFormed for the reply of a call.
func check(call *codec.Call, shape *rewrite.Shape) (err error) {
	call.UTF8, err = wellFormed(shape, call.Method, call.Reply)
	call.WellFormed = err == nil
	return err
}

// wellFormed refuses an answer that is cut off or malformed anywhere: joined with the answers of
// other backends it would spoil theirs. It reports whether all text in the answer is UTF-8.
func wellFormed(shape *rewrite.Shape, name string, answer *codec.Frame) (utf8 bool, err error) {
	utf8, err = CheckFrame(shape, answer)
	if err != nil {
		return false, status.Errorf(codes.Internal, "criproxy: the reply to %s is malformed: %v", name, err)
	}
	return utf8, nil
}

// CheckFrame is [rewrite.Shape.Check] for a frame. A frame of several pieces stays in them.
func CheckFrame(shape *rewrite.Shape, f *codec.Frame) (utf8 bool, err error) {
	c := shape.Checker()
	for piece := range f.Pieces() {
		if err := c.Add(piece); err != nil {
			return false, err
		}
	}
	return c.End()
}
