package memory

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/rewrite"
)

// A Verdict is a call option in which a [Conn] stores the result of checking the reply. The Conn
// checks each list, because memory must not keep a malformed one, so the caller need not check it
// again. The Conn fills the Verdict in before the call returns.
type Verdict struct {
	grpc.EmptyCallOption
	WellFormed bool // the reply is well formed; false if it was not checked
	UTF8       bool // all text in it is UTF-8
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

// say fills in the Verdict among opts, if there is one, for a well-formed answer.
func say(opts []grpc.CallOption, utf8 bool) {
	for _, o := range opts {
		if v, ok := o.(*Verdict); ok {
			v.WellFormed, v.UTF8 = true, utf8
		}
	}
}
