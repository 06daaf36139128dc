package transport_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
	"github.com/criproxy/criproxy/internal/testing/testkit"
	"github.com/criproxy/criproxy/internal/transport"
)

// scripted is a server that calls reply for each call, which writes any frames it likes.
func scripted(t *testing.T, reply func(p *rawPeer, call *http2.MetaHeadersFrame)) net.Listener {
	l := listen(t)
	go func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				p := newRawPeer(t, nc)
				if _, err := io.CopyN(io.Discard, nc, int64(len(http2.ClientPreface))); err != nil {
					return
				}
				_ = p.framer.WriteSettings()
				_ = p.say()
				for {
					f, err := p.reads.ReadFrame()
					if err != nil {
						return
					}
					if h, ok := f.(*http2.MetaHeadersFrame); ok {
						reply(p, h)
						_ = p.say()
					}
				}
			}()
		}
	}()
	return l
}

func invoke(t *testing.T, cc grpc.ClientConnInterface, opts ...grpc.CallOption) error {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return cc.Invoke(ctx, "/s.S/M", codec.NewFrame([]byte("request")), &codec.Frame{}, opts...)
}

// header sends the headers of a valid reply, good the whole reply.
func (p *rawPeer) header(id uint32) {
	p.headers(id, false, p.encode(":status", "200", "content-type", "application/grpc"))
}

func (p *rawPeer) good(id uint32) {
	p.header(id)
	p.data(id, false, prefixed([]byte("reply")))
	p.headers(id, true, p.encode("grpc-status", "0"))
}

func TestAReplyBecomesAStatus(t *testing.T) {
	only := func(fields ...string) func(*rawPeer, uint32) {
		return func(p *rawPeer, id uint32) { p.headers(id, true, p.encode(fields...)) }
	}
	reset := func(code http2.ErrCode) func(*rawPeer, uint32) {
		return func(p *rawPeer, id uint32) { _ = p.framer.WriteRSTStream(id, code) }
	}
	grpcType := []string{":status", "200", "content-type", "application/grpc"}
	for _, c := range []struct {
		name  string
		reply func(p *rawPeer, id uint32)
		code  codes.Code
		text  string
	}{
		{"trailers only", only(append(grpcType, "grpc-status", "5", "grpc-message", "50%25 of %C3%BC")...), codes.NotFound, "50% of \u00fc"},
		{"an unknown status", only(append(grpcType, "grpc-status", "77")...), codes.Code(77), ""},
		{"a status that is no number", only(append(grpcType, "grpc-status", "x")...), codes.Unknown, "malformed grpc-status"},
		{"no status", only(grpcType...), codes.Unknown, ""},
		{"OK without a message", only(append(grpcType, "grpc-status", "0")...), codes.Internal, "no response message"},
		{"NO_ERROR", reset(http2.ErrCodeNo), codes.Internal, "RST_STREAM"},
		{"PROTOCOL_ERROR", reset(http2.ErrCodeProtocol), codes.Internal, "PROTOCOL_ERROR"},
		{"CANCEL", reset(http2.ErrCodeCancel), codes.Canceled, "CANCEL"},
		{"REFUSED_STREAM", reset(http2.ErrCodeRefusedStream), codes.Unavailable, "REFUSED_STREAM"},
		{"ENHANCE_YOUR_CALM", reset(http2.ErrCodeEnhanceYourCalm), codes.ResourceExhausted, "ENHANCE_YOUR_CALM"},
		{"INADEQUATE_SECURITY", reset(http2.ErrCodeInadequateSecurity), codes.PermissionDenied, ""},
		{"an unknown code", reset(0x4242), codes.Unknown, ""},
		{"400", only(":status", "400"), codes.Internal, "400 (Bad Request)"},
		{"401", only(":status", "401"), codes.Unauthenticated, "401"},
		{"403", only(":status", "403"), codes.PermissionDenied, "403"},
		{"404", only(":status", "404"), codes.Unimplemented, "404"},
		{"429", only(":status", "429"), codes.Unavailable, "429"},
		{"502", only(":status", "502", "content-type", "text/html"), codes.Unavailable, `unexpected content-type "text/html"`},
		{"503", only(":status", "503"), codes.Unavailable, "503"},
		{"504", only(":status", "504"), codes.Unavailable, "504"},
		{"418", only(":status", "418"), codes.Unknown, "418"},
		{"200 of a server that does not speak gRPC", only(":status", "200"), codes.Unknown, "missing HTTP content-type"},
		{"no HTTP status", only("content-type", "text/plain"), codes.Internal, "missing HTTP status"},
		{"a page", func(p *rawPeer, id uint32) {
			p.headers(id, false, p.encode(":status", "503", "content-type", "text/html"))
			p.data(id, true, []byte("<html>"))
		}, codes.Unavailable, "503"},
		{"100 and then a reply", func(p *rawPeer, id uint32) {
			p.headers(id, false, p.encode(":status", "100"))
			p.headers(id, false, p.encode(":status", "103", "link", "x"))
			p.good(id)
		}, codes.OK, ""},
		{"100 and no more", only(":status", "100"), codes.Internal, "informational"},
		{"no trailers", func(p *rawPeer, id uint32) {
			p.header(id)
			p.data(id, true, prefixed([]byte("reply")))
		}, codes.Internal, "without sending trailers"},
		{"half a message", func(p *rawPeer, id uint32) {
			p.header(id)
			p.data(id, false, prefixed([]byte("reply"))[:7])
			p.headers(id, true, p.encode("grpc-status", "0"))
		}, codes.Internal, "unexpected EOF"},
		{"two messages", func(p *rawPeer, id uint32) {
			p.header(id)
			p.data(id, false, append(prefixed([]byte("reply")), prefixed([]byte("reply"))...))
			p.headers(id, true, p.encode("grpc-status", "0"))
		}, codes.Internal, "another message"},
		{"headers in the middle", func(p *rawPeer, id uint32) {
			p.header(id)
			p.header(id)
		}, codes.Internal, "in the middle of a stream"},
		{"a message that is too long", func(p *rawPeer, id uint32) {
			p.header(id)
			p.data(id, false, []byte{0, 2, 0, 0, 0})
		}, codes.ResourceExhausted, "larger than max (33554432 vs. 16777216)"},
		{"a compressed message", func(p *rawPeer, id uint32) {
			p.header(id)
			p.data(id, false, []byte{1, 0, 0, 0, 0})
			p.headers(id, true, p.encode("grpc-status", "0"))
		}, codes.Internal, "compressed flag"},
		{"a field that is malformed", func(p *rawPeer, id uint32) {
			p.headers(id, false, p.encode(":status", "200", "content-type", "application/grpc", "Upper", "x"))
		}, codes.Internal, "not a valid name of a header field"},
		{"no base64", only(append(grpcType, "grpc-status", "0", "x-bin", "!")...), codes.Internal, "malformed x-bin"},
		{"good", (*rawPeer).good, codes.OK, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := scripted(t, func(p *rawPeer, call *http2.MetaHeadersFrame) { c.reply(p, call.StreamID) })
			err := invoke(t, newClient(t, transport.ClientConfig{Dial: dialer(l)}))
			assert.Equal(t, c.code, status.Code(err), err)
			assert.Contains(t, status.Convert(err).Message(), c.text)
		})
	}
}

// The guard took such a reply for a flood, and ended all calls of the connection.
func TestAReplyMayComeByteByByte(t *testing.T) {
	l := scripted(t, func(p *rawPeer, call *http2.MetaHeadersFrame) {
		p.header(call.StreamID)
		for _, b := range prefixed(make([]byte, 60_000)) {
			p.data(call.StreamID, false, []byte{b})
		}
		p.headers(call.StreamID, true, p.encode("grpc-status", "0"))
	})
	assert.NoError(t, invoke(t, newClient(t, transport.ClientConfig{Dial: dialer(l)})))
}

func TestAServerMayNotSendMoreThanTheWindow(t *testing.T) {
	l := scripted(t, func(p *rawPeer, call *http2.MetaHeadersFrame) {
		p.header(call.StreamID)
		p.data(call.StreamID, false, []byte{0, 0, 2, 0, 0})
		for range 5 {
			p.data(call.StreamID, false, make([]byte, 16<<10))
		}
	})
	memory := newPurse(megabyte)
	require.True(t, memory.TryReserve(t.Context(), megabyte)) // by others
	err := invoke(t, newClient(t, transport.ClientConfig{Dial: dialer(l), Budget: memory}))
	assert.Equal(t, codes.ResourceExhausted, status.Code(err), err)
	assert.ErrorContains(t, err, "longer than the window")
}

func TestAServersMistakeEndsOnlyItsConnection(t *testing.T) {
	for name, mistake := range map[string]func(p *rawPeer, id uint32){
		"a push": func(p *rawPeer, id uint32) {
			_ = p.framer.WritePushPromise(http2.PushPromiseParam{StreamID: id, PromiseID: 2, BlockFragment: p.encode(":method", "GET"), EndHeaders: true})
		},
		"a reply to no call": func(p *rawPeer, id uint32) { p.header(id + 100) },
		"data for no call":   func(p *rawPeer, id uint32) { p.data(id+100, false, []byte("x")) },
		"a block that cannot be decoded": func(p *rawPeer, id uint32) {
			p.headers(id, false, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
		},
		"a frame that is too long":   func(p *rawPeer, id uint32) { p.data(id, false, make([]byte, 16385)) },
		"a window that is too large": func(p *rawPeer, _ uint32) { _ = p.framer.WriteWindowUpdate(0, 1<<31-1) },
		"settings that are wrong": func(p *rawPeer, _ uint32) {
			_ = p.framer.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1})
		},
		"a GOAWAY that takes back": func(p *rawPeer, id uint32) {
			_ = p.framer.WriteGoAway(id, 0, nil)
			_ = p.framer.WriteGoAway(id+2, 0, nil)
		},
		"a header block within another one": func(p *rawPeer, id uint32) {
			_ = p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id})
			p.header(id)
		},
		"endless 100": func(p *rawPeer, id uint32) {
			for range 200_000 {
				p.headers(id, false, p.encode(":status", "100"))
			}
		},
		"a flood of PING": func(p *rawPeer, _ uint32) {
			for range 200_000 {
				_ = p.framer.WritePing(false, [8]byte{})
			}
		},
		"a flood of DATA with nothing in it": func(p *rawPeer, id uint32) {
			p.header(id)
			for range 200_000 {
				p.data(id, false, nil)
			}
		},
		"a flood of SETTINGS": func(p *rawPeer, _ uint32) {
			for range 200_000 {
				_ = p.framer.WriteSettings()
			}
		},
		"endless CONTINUATION": func(p *rawPeer, id uint32) {
			_ = p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.encode(":status", "200")})
			for range 200_000 {
				_ = p.framer.WriteContinuation(id, false, p.encode("x", "y"))
			}
		},
		"an end": func(p *rawPeer, _ uint32) { _ = p.say(); p.nc.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			made := false
			l := scripted(t, func(p *rawPeer, call *http2.MetaHeadersFrame) {
				mu.Lock()
				first := !made
				made = true
				mu.Unlock()
				if first {
					mistake(p, call.StreamID)
				} else {
					p.good(call.StreamID)
				}
			})
			c := newClient(t, transport.ClientConfig{Dial: dialer(l)})
			before := spent()
			err := invoke(t, c)
			assert.Equal(t, codes.Unavailable, status.Code(err), err)
			t.Logf("%v; CPU %v (both ends), heap +%d KB", err, spent().minus(before).cpu, spent().minus(before).heap>>10)
			assert.NoError(t, invoke(t, c), "it does not connect anew")
		})
	}
}

// streamed makes a call whose replies are a stream. If header is set, it waits for the header first, which a call that succeeds has.
func streamed(t *testing.T, cc grpc.ClientConnInterface, header bool) error {
	cs, err := cc.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, "/s.S/M")
	require.NoError(t, err)
	require.NoError(t, cs.SendMsg(codec.NewFrame([]byte("request"))))
	require.NoError(t, cs.CloseSend())
	var md metadata.MD
	if header {
		md, err = cs.Header()
		require.NoError(t, err)
	}
	for {
		if err := cs.RecvMsg(&codec.Frame{}); errors.Is(err, io.EOF) {
			assert.Equal(t, header, md != nil)
			return nil
		} else if err != nil {
			return err
		}
	}
}

func TestAnUnprocessedCallIsMadeAgain(t *testing.T) {
	for name, refuse := range map[string]func(p *rawPeer, id uint32){
		"REFUSED_STREAM": func(p *rawPeer, id uint32) { _ = p.framer.WriteRSTStream(id, http2.ErrCodeRefusedStream) },
		"GOAWAY":         func(p *rawPeer, id uint32) { _ = p.framer.WriteGoAway(max(id, 2)-2, http2.ErrCodeNo, nil) },
	} {
		for kind, call := range map[string]func(*testing.T, grpc.ClientConnInterface) error{
			"unary":  func(t *testing.T, c grpc.ClientConnInterface) error { return invoke(t, c) },
			"stream": func(t *testing.T, c grpc.ClientConnInterface) error { return streamed(t, c, false) },
			// A proxy asks for the headers first. It got none when the call was repeated.
			"stream whose headers come first": func(t *testing.T, c grpc.ClientConnInterface) error { return streamed(t, c, true) },
		} {
			for times, want := range map[int]codes.Code{1: codes.OK, 2: codes.Unavailable} {
				t.Run(name+" "+kind, func(t *testing.T) {
					var mu sync.Mutex
					calls := 0
					l := scripted(t, func(p *rawPeer, call *http2.MetaHeadersFrame) {
						mu.Lock()
						defer mu.Unlock()
						if calls++; calls == 1 {
							p.good(call.StreamID) // so that a GOAWAY can name it as the last stream
						} else if calls <= 1+times {
							refuse(p, call.StreamID)
						} else {
							p.good(call.StreamID)
						}
					})
					c := newClient(t, transport.ClientConfig{Dial: dialer(l)})
					require.NoError(t, invoke(t, c))
					err := call(t, c)
					assert.Equal(t, want, status.Code(err), "refused %d times: %v", times, err)
					mu.Lock()
					assert.Equal(t, 3, calls)
					mu.Unlock()
				})
			}
		}
	}
}

func TestAPossiblyProcessedCallIsNotRepeated(t *testing.T) {
	for name, end := range map[string]func(p *rawPeer, id uint32){
		"the connection ends": func(p *rawPeer, _ uint32) { p.nc.Close() },
		"GOAWAY that takes it": func(p *rawPeer, id uint32) {
			_ = p.framer.WriteGoAway(id, http2.ErrCodeNo, []byte("bye"))
			_ = p.say()
			p.nc.Close()
		},
		"CANCEL": func(p *rawPeer, id uint32) { _ = p.framer.WriteRSTStream(id, http2.ErrCodeCancel) },
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			calls := 0
			l := scripted(t, func(p *rawPeer, call *http2.MetaHeadersFrame) {
				mu.Lock()
				calls++
				mu.Unlock()
				end(p, call.StreamID)
			})
			assert.Error(t, invoke(t, newClient(t, transport.ClientConfig{Dial: dialer(l)})))
			mu.Lock()
			assert.Equal(t, 1, calls)
			mu.Unlock()
		})
	}
}

func TestACallUnderWaySurvivesGOAWAY(t *testing.T) {
	l := scripted(t, func(p *rawPeer, call *http2.MetaHeadersFrame) {
		_ = p.framer.WriteGoAway(1<<31-1, http2.ErrCodeNo, nil)
		_ = p.framer.WriteGoAway(call.StreamID, http2.ErrCodeNo, nil)
		_ = p.framer.WritePing(false, [8]byte{1})
		_ = p.say()
		p.until(func(f http2.Frame) bool { // by then the client has read GOAWAY
			ping, ok := f.(*http2.PingFrame)
			return ok && ping.IsAck()
		})
		p.good(call.StreamID)
	})
	c := newClient(t, transport.ClientConfig{Dial: dialer(l)})
	for range 5 { // each on its own connection
		assert.NoError(t, invoke(t, c))
	}
}

func TestCallsWaitAtTheServersStreamLimit(t *testing.T) {
	release := make(chan struct{})
	l := servedAs(t, transport.ServerConfig{MaxStreams: 1, Handler: func(_ any, ss grpc.ServerStream) error {
		<-release
		return echo(nil, ss)
	}})
	c := newClient(t, transport.ClientConfig{Dial: dialer(l)})
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() { assert.NoError(t, invoke(t, c)) })
	}
	muxtest.Parked(t, 19, "transport.(*conn).awaitTurn")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	assert.Equal(t, codes.DeadlineExceeded, status.Code(c.Invoke(ctx, "/s.S/M", &codec.Frame{}, &codec.Frame{})), "it does not look at its context")
	close(release)
	all.Wait()
}

func TestCallsFailAtOnceWhileTheServerIsGone(t *testing.T) {
	testkit.OnSimulatedClock(t, func(t *testing.T) {
		down := errors.New("connection refused")
		c := newClient(t, transport.ClientConfig{Dial: func(context.Context) (net.Conn, error) { return nil, down }})
		began := time.Now()
		for range 3 {
			err := invoke(t, c)
			assert.Equal(t, codes.Unavailable, status.Code(err))
			assert.ErrorContains(t, err, down.Error())
		}
		assert.Zero(t, time.Since(began), "a call waits for no other attempt")
	})
}

func TestAClientComesBackWithItsServer(t *testing.T) {
	at := listen(t)
	server := serve(t, at, transport.ServerConfig{Handler: echo})
	var mu sync.Mutex
	there := true
	c := newClient(t, transport.ClientConfig{
		Dial: func(ctx context.Context) (net.Conn, error) {
			mu.Lock()
			defer mu.Unlock()
			if !there {
				return nil, errors.New("connection refused")
			}
			return dialer(at)(ctx)
		},
	})
	states := make(chan connectivity.State, 100)
	go keepUp(t.Context(), c, states)
	is := func(want connectivity.State) {
		t.Helper()
		for {
			select {
			case s := <-states:
				if s == want {
					return
				}
			case <-time.After(patience):
				require.Fail(t, "it is never "+want.String())
			}
		}
	}
	is(connectivity.Ready)
	require.NoError(t, c.Err())
	require.NoError(t, invoke(t, c))
	mu.Lock()
	there = false
	mu.Unlock()
	server.Stop()
	is(connectivity.TransientFailure)
	assert.ErrorContains(t, c.Err(), "connection refused")
	mu.Lock()
	at, there = served(t, echo), true
	mu.Unlock()
	is(connectivity.Ready)
	require.NoError(t, invoke(t, c))
	require.NoError(t, c.Close())
	assert.Equal(t, connectivity.Shutdown, c.GetState())
	assert.Equal(t, codes.Canceled, status.Code(invoke(t, c)))
}

// keepUp connects whenever there is no connection, and sends each state that it sees.
func keepUp(ctx context.Context, c *client, states chan<- connectivity.State) {
	for {
		state := c.GetState()
		select {
		case states <- state:
		default:
		}
		if state == connectivity.Idle {
			c.Connect()
		}
		if state == connectivity.Shutdown || !c.WaitForStateChange(ctx, state) {
			return
		}
	}
}

func TestAServerWithoutSettingsIsNotReady(t *testing.T) {
	l := listen(t)
	var attempts atomic.Int32
	again, release := make(chan struct{}), make(chan struct{})
	defer close(release)
	c := newClient(t, transport.ClientConfig{ConnectTimeout: 50 * time.Millisecond, Dial: func(ctx context.Context) (net.Conn, error) {
		if attempts.Add(1) == 2 {
			close(again)
			<-release
		}
		return dialer(l)(ctx)
	}})
	assert.Equal(t, codes.Unavailable, status.Code(invoke(t, c)))
	var silent *transport.SilentError
	require.ErrorAs(t, c.Err(), &silent)
	select {
	case <-again:
	case <-time.After(patience):
		require.Fail(t, "there is no second attempt")
	}
	assert.Equal(t, codes.Unavailable, status.Code(invoke(t, c)), "a later call waits for no attempt")
	http1 := listen(t)
	go func() {
		for {
			nc, err := http1.Accept()
			if err != nil {
				return
			}
			_, _ = nc.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
		}
	}()
	c = newClient(t, transport.ClientConfig{Dial: dialer(http1)})
	err := invoke(t, c)
	assert.Equal(t, codes.Unavailable, status.Code(err), err)
}

func TestACallThatIsCancelledIsReset(t *testing.T) {
	resets := make(chan http2.ErrCode, 1)
	ctx, cancel := context.WithCancel(t.Context())
	l := listen(t)
	go func() {
		p := rawServer(t, l)
		p.until(func(f http2.Frame) bool { _, ok := f.(*http2.MetaHeadersFrame); return ok })
		cancel() // not before the call has begun, however slow the machine is
		resets <- p.reset(1)
	}()
	c := newClient(t, transport.ClientConfig{Dial: dialer(l)})
	err := c.Invoke(ctx, "/s.S/M", &codec.Frame{}, &codec.Frame{})
	assert.Equal(t, codes.Canceled, status.Code(err))
	assert.Equal(t, http2.ErrCodeCancel, <-resets)
}

func TestACallSendsMetadataAndFillsItsOptions(t *testing.T) {
	called := make(chan map[string]string, 10)
	l := scripted(t, func(p *rawPeer, call *http2.MetaHeadersFrame) {
		called <- fieldsOf(call)
		id := call.StreamID
		p.headers(id, false, p.encode(":status", "200", "content-type", "application/grpc", "x-h", "1", "x-h-bin", "AAE"))
		p.data(id, false, prefixed([]byte("reply")))
		p.headers(id, true, p.encode("grpc-status", "0", "x-t", "2"))
	})
	var from net.Addr
	c := newClient(t, transport.ClientConfig{Dial: dialer(l), Authority: "node", UserAgent: "test", Began: func(_ context.Context, to net.Addr) { from = to }})
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, "x-a", "1", "X-B-bin", "\x00\x01")
	var header, trailer metadata.MD
	var reply codec.Frame
	require.NoError(t, c.Invoke(ctx, "/s.S/M", codec.NewFrame([]byte("request")), &reply, grpc.Header(&header), grpc.Trailer(&trailer)))
	assert.Equal(t, "reply", string(reply.Bytes()))
	assert.Equal(t, metadata.MD{"content-type": {"application/grpc"}, "x-h": {"1"}, "x-h-bin": {"\x00\x01"}}, header)
	assert.Equal(t, metadata.MD{"x-t": {"2"}}, trailer)
	assert.Equal(t, l.Addr().String(), from.String())
	fields := <-called
	left := fields["grpc-timeout"]
	n, err := strconv.Atoi(left[:len(left)-1])
	require.NoError(t, err)
	timeout := time.Duration(n) * map[byte]time.Duration{'m': time.Millisecond, 'S': time.Second}[left[len(left)-1]]
	assert.LessOrEqual(t, timeout, time.Hour)
	assert.GreaterOrEqual(t, timeout, time.Hour-time.Since(began))
	delete(fields, "grpc-timeout")
	assert.Equal(t, map[string]string{
		":method": "POST", ":scheme": "http", ":path": "/s.S/M", ":authority": "node", "content-type": "application/grpc",
		"user-agent": "test", "te": "trailers", "x-a": "1", "x-b-bin": "AAE",
	}, fields)

	assert.ErrorContains(t, c.Invoke(t.Context(), "/s.S/M", strings.NewReader(""), &codec.Frame{}), "cannot send")
}

// What HTTP/2 can carry passes as it is, printable or not; the rest is dropped. The call goes on in either case. A proxy that
// forwards the client's content-length sends a request of another length: with rewritten names, or decompressed.
func TestNoByteOfMetadataFailsACall(t *testing.T) {
	var mu sync.Mutex
	var lost []transport.Loss
	note := func(l transport.Loss) {
		mu.Lock()
		defer mu.Unlock()
		lost = append(lost, l)
	}
	odd := metadata.MD{"x": {"\u00fc", "\xff\t"}, "a!b": {"v"}, "a b": {"v"}, "y": {"a\nb"}, "connection": {"close"}, "content-length": {"3"}}
	got := make(chan metadata.MD, 1)
	l := servedAs(t, transport.ServerConfig{Lost: note, Handler: func(_ any, ss grpc.ServerStream) error {
		md, _ := metadata.FromIncomingContext(ss.Context())
		got <- md
		ss.SetTrailer(odd)
		if err := ss.SetHeader(odd); err != nil {
			return err
		}
		return echo(nil, ss)
	}})
	c := newClient(t, transport.ClientConfig{Dial: dialer(l), Lost: note})
	var header, trailer metadata.MD
	require.NoError(t, c.Invoke(metadata.NewOutgoingContext(t.Context(), odd), "/s.S/M", &codec.Frame{}, &codec.Frame{}, grpc.Header(&header), grpc.Trailer(&trailer)))
	request := <-got
	for _, md := range []metadata.MD{request, header, trailer} {
		assert.Equal(t, []string{"\u00fc", "\xff\t"}, md["x"])
		assert.Equal(t, []string{"v"}, md["a!b"])
		for _, name := range []string{"a b", "y", "connection", "content-length"} {
			assert.NotContains(t, md, name)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	want := []transport.Loss{{"/s.S/M", "a b", false, transport.LossBytes}, {"/s.S/M", "y", false, transport.LossBytes}}
	for range 2 { // header and trailer
		want = append(want, transport.Loss{"/s.S/M", "a b", true, transport.LossBytes}, transport.Loss{"/s.S/M", "y", true, transport.LossBytes})
	}
	assert.ElementsMatch(t, want, lost)
}

func TestClosingAClientEndsItsCalls(t *testing.T) {
	began := make(chan struct{}, 5)
	l := served(t, func(_ any, ss grpc.ServerStream) error {
		began <- struct{}{}
		<-ss.Context().Done()
		return nil
	})
	c := newClient(t, transport.ClientConfig{Dial: dialer(l)})
	results := make(chan error)
	for range 5 {
		go func() { results <- invoke(t, c) }()
	}
	for range 5 {
		<-began
	}
	require.NoError(t, c.Close())
	for range 5 {
		assert.Equal(t, codes.Canceled, status.Code(<-results))
	}
}

func TestAServerThatResetsAtOnceIsNotAskedInALoop(t *testing.T) {
	l := listen(t)
	var mu sync.Mutex
	accepted := 0
	go func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			accepted++
			mu.Unlock()
			p := newRawPeer(t, nc)
			_, _ = io.CopyN(io.Discard, nc, int64(len(http2.ClientPreface)))
			_ = p.framer.WriteSettings()
			_ = p.say()
			for f, err := p.reads.ReadFrame(); err == nil && !f.Header().Flags.Has(http2.FlagSettingsAck); f, err = p.reads.ReadFrame() {
			}
			_ = p.framer.WriteGoAway(0, http2.ErrCodeNo, nil) // the client is ready, and not at its backoff
			_ = p.say()
			_ = nc.Close()
		}
	}()
	c := newClient(t, transport.ClientConfig{Dial: dialer(l)})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	go keepUp(ctx, c, nil)
	<-ctx.Done()
	mu.Lock()
	defer mu.Unlock()
	assert.LessOrEqual(t, accepted, int(time.Since(began)/(10*time.Millisecond))+1)
}
