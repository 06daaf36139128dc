package transport_test

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/transport"
)

// answer is a handler that answers each call with the number and length of messages that the
// method's name says, as in 2x3000.
func answer(srv any, ss grpc.ServerStream) error {
	name, _ := grpc.MethodFromServerStream(ss)
	count, size, _ := strings.Cut(strings.TrimPrefix(name, "/bench/"), "x")
	times, _ := strconv.Atoi(count)
	n, _ := strconv.Atoi(size)
	var f codec.Frame
	if err := ss.RecvMsg(&f); err != nil {
		return err
	}
	f.Free()
	if times == 1 {
		transport.Unary(ss.Context())
	}
	for range times {
		reply := codec.NewFrame(replies[:n])
		if err := ss.SendMsg(reply); err != nil {
			return err
		}
	}
	return nil
}

var replies = make([]byte, 16<<20)

// cpu makes the benchmark report the CPU time of an operation, on which other programs on the
// machine have less influence than on its duration.
func cpu(b *testing.B) func() {
	used := func() int64 {
		var u syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
		return u.Utime.Nano() + u.Stime.Nano()
	}
	before := used()
	return func() { b.ReportMetric(float64(used()-before)/float64(b.N), "cpu-ns/op") }
}

func BenchmarkTransport(b *testing.B) {
	for _, side := range []struct {
		name string
		end
	}{{"grpc", grpcGo}, {"ours", ours}} {
		b.Run(side.name, func(b *testing.B) {
			l := listen(b)
			side.serve(b, l, answer)
			cc := side.dial(b, dialer(l))
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			request := codec.NewFrame(make([]byte, 70))
			call := func(b *testing.B, name string) {
				var reply codec.Frame
				if err := cc.Invoke(ctx, name, request, &reply); err != nil {
					b.Error(err)
				}
				reply.Free()
			}
			unary := func(n int) func(*testing.B) {
				name := fmt.Sprintf("/bench/1x%d", n)
				return func(b *testing.B) {
					b.ReportAllocs()
					defer cpu(b)()
					for b.Loop() {
						call(b, name)
					}
				}
			}
			b.Run("one", unary(1000))
			b.Run("16", func(b *testing.B) {
				b.ReportAllocs()
				defer cpu(b)()
				b.SetParallelism(16)
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						call(b, "/bench/1x1000")
					}
				})
			})
			b.Run("20k", unary(20000))
			b.Run("400k", unary(400<<10))
			b.Run("15M", unary(15<<20))
			b.Run("stream", func(b *testing.B) {
				b.ReportAllocs()
				defer cpu(b)()
				cs, err := cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, fmt.Sprintf("/bench/%dx500", b.N))
				require.NoError(b, err)
				require.NoError(b, cs.SendMsg(request))
				require.NoError(b, cs.CloseSend())
				n := 0
				for {
					var f codec.Frame
					if err := cs.RecvMsg(&f); err == io.EOF {
						break
					} else if err != nil {
						b.Fatal(err)
					}
					f.Free()
					n++
				}
				require.Equal(b, b.N, n)
			})
		})
	}
}
