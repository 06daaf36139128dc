package backend_test

import (
	"context"
	"testing"

	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// replying answers each call with the same message.
type replying struct{ reply []byte }

func (r replying) Call(_ context.Context, call *codec.Call) error {
	call.Reply = codec.NewFrame(r.reply)
	return nil
}

func (replying) Open(context.Context, *grpc.StreamDesc, string, *codec.Frame) (codec.Stream, error) {
	panic("no streams")
}

// BenchmarkCall measures what a Backend adds to a call: a status, and a change.
func BenchmarkCall(b *testing.B) {
	n := &near{library: &library{books: map[string]string{"a": ""}}}
	for _, method := range []string{"Get", "Bind"} {
		b.Run(method, func(b *testing.B) {
			cfg := n.config(b, nil)
			cfg.Next = replying{muxtest.Bytes("Book", `id: "a"`).Bytes()}
			w := cfg.begin(b)
			request := muxtest.Bytes("GetRequest", `book_id: "a"`).Bytes()
			b.ReportAllocs()
			for b.Loop() {
				call := &codec.Call{Method: muxtest.Method(method), Request: codec.NewFrame(request)}
				if err := w.Call(context.Background(), call); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
