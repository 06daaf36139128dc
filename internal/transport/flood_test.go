package transport_test

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/transport"
)

// A flood is a sequence of frames that a client sends again and again.
type flood struct {
	name  string
	begin func(p *rawPeer)           // sends the first frames
	again func(p *rawPeer, n uint32) // sends the frames of round n
	read  bool                       // the client reads the answers
}

// floods are known attacks on HTTP/2 servers.
func floods() []flood {
	block := func(p *rawPeer) []byte { return p.request() }
	id := func(n uint32) uint32 { return 2*n + 1 }
	return []flood{
		{name: "rapid reset, CVE-2023-44487", read: true,
			again: func(p *rawPeer, n uint32) {
				p.headers(id(n), false, block(p))
				_ = p.framer.WriteRSTStream(id(n), http2.ErrCodeCancel)
			}},
		{name: "rapid reset of calls with a request", read: true,
			again: func(p *rawPeer, n uint32) {
				p.headers(id(n), false, block(p))
				p.data(id(n), false, prefixed(make([]byte, 40)))
				_ = p.framer.WriteRSTStream(id(n), http2.ErrCodeCancel)
			}},
		{name: "resets by the server, CVE-2025-8671: a window update of nothing", read: true,
			again: func(p *rawPeer, n uint32) {
				p.headers(id(n), true, block(p))
				_ = p.framer.WriteWindowUpdate(id(n), 0)
			}},
		{name: "resets by the server, CVE-2025-8671: a window that is too large", read: true,
			again: func(p *rawPeer, n uint32) {
				p.headers(id(n), true, block(p))
				_ = p.framer.WriteWindowUpdate(id(n), 1<<31-1)
			}},
		{name: "resets by the server, CVE-2025-8671: data behind the end", read: true,
			again: func(p *rawPeer, n uint32) {
				p.headers(id(n), true, block(p))
				p.data(id(n), false, []byte("more than nothing, which is another flood"))
			}},
		{name: "resets by the server, CVE-2025-8671: a stream that depends on itself", read: true,
			again: func(p *rawPeer, n uint32) {
				p.headers(id(n), true, block(p))
				_ = p.framer.WritePriority(id(n), http2.PriorityParam{StreamDep: id(n)})
			}},
		{name: "resets that the client does not read, CVE-2019-9514",
			again: func(p *rawPeer, n uint32) { p.headers(id(n), true, p.encode(":method", "POST")) }},
		{name: "endless CONTINUATION, CVE-2024-27316",
			begin: func(p *rawPeer) {
				_ = p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(p)})
			},
			again: func(p *rawPeer, n uint32) {
				_ = p.framer.WriteContinuation(1, false, p.encode("x-name", fmt.Sprint("value ", n)))
			}},
		{name: "CONTINUATION with nothing in it",
			begin: func(p *rawPeer) {
				_ = p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(p)})
			},
			again: func(p *rawPeer, n uint32) { _ = p.framer.WriteContinuation(1, false, nil) }},
		{name: "PING, CVE-2019-9512",
			again: func(p *rawPeer, n uint32) { _ = p.framer.WritePing(false, [8]byte{}) }},
		{name: "PING whose answers are read", read: true,
			again: func(p *rawPeer, n uint32) { _ = p.framer.WritePing(false, [8]byte{}) }},
		{name: "SETTINGS, CVE-2019-9515",
			again: func(p *rawPeer, n uint32) { _ = p.framer.WriteSettings() }},
		{name: "SETTINGS whose answers are read", read: true,
			again: func(p *rawPeer, n uint32) { _ = p.framer.WriteSettings() }},
		{name: "windows of many streams, up and down", read: true,
			begin: func(p *rawPeer) {
				for n := range uint32(1000) {
					p.headers(id(n), false, block(p))
				}
			},
			again: func(p *rawPeer, n uint32) {
				_ = p.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: n % 2})
			}},
		{name: "DATA with nothing in it, CVE-2019-9518",
			begin: func(p *rawPeer) { p.headers(1, false, block(p)) },
			again: func(p *rawPeer, n uint32) { p.data(1, false, nil) }},
		{name: "DATA with padding only",
			begin: func(p *rawPeer) { p.headers(1, false, block(p)) },
			again: func(p *rawPeer, n uint32) { _ = p.framer.WriteDataPadded(1, false, nil, []byte{0}) }},
		{name: "PRIORITY, CVE-2019-9513",
			again: func(p *rawPeer, n uint32) {
				_ = p.framer.WritePriority(id(n%1000), http2.PriorityParam{StreamDep: id((n + 7) % 1000)})
			}},
		{name: "WINDOW_UPDATE of the connection",
			again: func(p *rawPeer, n uint32) { _ = p.framer.WriteWindowUpdate(0, 1) }},
		{name: "WINDOW_UPDATE of a stream",
			begin: func(p *rawPeer) { p.headers(1, false, block(p)) },
			again: func(p *rawPeer, n uint32) { _ = p.framer.WriteWindowUpdate(1, 1) }},
		{name: "frames of an unknown type",
			again: func(p *rawPeer, n uint32) { _ = p.framer.WriteRawFrame(0x42, 0, 0, make([]byte, 100)) }},
		{name: "a reply byte by byte, CVE-2019-9511", read: true,
			begin: func(p *rawPeer) {
				_ = p.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
				p.headers(1, false, p.requestTo("/bench/1x1000000"))
				p.data(1, true, prefixed(nil))
			},
			again: func(p *rawPeer, n uint32) { _ = p.framer.WriteWindowUpdate(1, 1) }},
		{name: "calls over the limit", read: true,
			again: func(p *rawPeer, n uint32) { p.headers(id(n), false, block(p)) }},
	}
}

// hanging is a handler that runs until its call ends, except for the methods of answer.
func hanging(running *atomic.Int64) grpc.StreamHandler {
	return func(srv any, ss grpc.ServerStream) error {
		if name, _ := grpc.MethodFromServerStream(ss); name != "/test.Service/Method" {
			return answer(srv, ss)
		}
		running.Add(1)
		defer running.Add(-1)
		<-ss.Context().Done()
		return ss.Context().Err()
	}
}

func TestFloodsAreCutOff(t *testing.T) {
	for _, f := range floods() {
		t.Run(f.name, func(t *testing.T) {
			var running, peak atomic.Int64
			hang := hanging(&running)
			l := servedAs(t, transport.ServerConfig{Pings: anyPings, MaxStreams: 2000, Handler: func(srv any, ss grpc.ServerStream) error {
				peak.Store(max(peak.Load(), running.Load()))
				return hang(srv, ss)
			}})
			good := newClient(t, transport.ClientConfig{Dial: dialer(l)})
			slowest := make(chan time.Duration, 1)
			ctx, stop := context.WithCancel(t.Context())
			go probe(t, ctx, good, slowest)

			p := rawClient(t, l)
			before := spent()
			said, bytes := f.run(p)
			if code, why := p.goAway(); f.read || code != http2.ErrCodeNo { // a client that reads nothing may miss it
				assert.Equal(t, http2.ErrCodeEnhanceYourCalm, code, why)
			}
			cost := spent().minus(before)
			assert.Less(t, said, endless)
			stop()
			require.Eventually(t, func() bool { return running.Load() == 0 }, patience, time.Millisecond, "handlers of a client that was cut off go on")
			assert.LessOrEqual(t, peak.Load(), int64(2000))
			t.Logf("cut off after %d, %d KB; CPU %v (both ends), heap +%d KB; another client's calls took %v at most", said, bytes>>10, cost.cpu.Round(time.Millisecond), cost.heap>>10, <-slowest)
		})
	}
}

// endless is how many rounds a flood has if the server does not end the connection.
const endless = 200_000

// run sends the flood until the server ends the connection, and returns the number of rounds and of
// bytes.
func (f flood) run(p *rawPeer) (said, bytes int) {
	if f.begin != nil {
		f.begin(p)
	}
	if f.read {
		reads := newRawPeer(p.t, p.nc)
		done := make(chan struct{})
		var code http2.ErrCode
		var why string
		go func() {
			defer close(done)
			code, why = reads.goAway()
		}()
		p.goAwayIs = func() (http2.ErrCode, string) {
			<-done
			return code, why
		}
	}
	for ; said < endless; said++ {
		f.again(p, uint32(said))
		if p.out.Len() > 32<<10 {
			bytes += p.out.Len()
			_ = p.nc.SetWriteDeadline(time.Now().Add(patience))
			if p.say() != nil {
				break
			}
		}
	}
	return said, bytes
}

// probe makes calls until ctx ends, and then sends the duration of the slowest.
func probe(t *testing.T, ctx context.Context, cc grpc.ClientConnInterface, slowest chan<- time.Duration) {
	var most time.Duration
	for ctx.Err() == nil {
		begun := time.Now()
		var reply codec.Frame
		err := cc.Invoke(t.Context(), "/bench/1x100", codec.NewFrame([]byte("x")), &reply)
		most = max(most, time.Since(begun))
		if !assert.NoError(t, err) {
			break
		}
		time.Sleep(time.Millisecond) // the pace of a client, which waits for nothing
	}
	slowest <- most
}

// expense is what the process has used.
type expense struct {
	cpu  time.Duration
	heap int64
}

func spent() expense {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return expense{time.Duration(u.Utime.Nano() + u.Stime.Nano()), int64(m.HeapAlloc)}
}

func (e expense) minus(before expense) expense {
	return expense{e.cpu - before.cpu, e.heap - before.heap}
}
