package transport_test

import (
	"context"
	"crypto/tls"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
	"github.com/criproxy/criproxy/internal/testing/testkit"
	"github.com/criproxy/criproxy/internal/transport"
)

func TestASilentPeerIsBoundedInTheHandshake(t *testing.T) {
	shake := func(nc net.Conn) (net.Conn, credentials.AuthInfo, error) { return nc, nil, nil }
	secure := func(nc net.Conn) (net.Conn, credentials.AuthInfo, error) {
		s := tls.Server(nc, &tls.Config{})
		return s, nil, s.Handshake()
	}
	for name, said := range map[string]string{
		"nothing":                     "",
		"half a preface":              http2.ClientPreface[:10],
		"a preface and no settings":   http2.ClientPreface,
		"a preface and half of them":  http2.ClientPreface + "\x00\x00\x06\x04",
		"a preface and another frame": http2.ClientPreface + "\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678",
		"HTTP/1":                      "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"something else":              "SSH-2.0-OpenSSH_9.2p1 Debian\r\n",
	} {
		for kind, h := range map[string]transport.Handshake{"": nil, " with a handshake": shake, " with TLS": secure} {
			t.Run(name+kind, func(t *testing.T) {
				l := listen(t)
				s := transport.NewServer(transport.ServerConfig{HandshakeTimeout: 50 * time.Millisecond})
				go s.Serve(l, h)
				defer s.Stop()
				nc, err := net.Dial("unix", l.Addr().String())
				require.NoError(t, err)
				defer nc.Close()
				_, _ = nc.Write([]byte(said)) // fails if the server has closed the connection by now
				for {
					_ = nc.SetReadDeadline(time.Now().Add(patience))
					if _, err := nc.Read(make([]byte, 1000)); err != nil {
						break
					}
				}
				require.Eventually(t, func() bool { all, _ := s.Conns(); return all == 0 }, patience, time.Millisecond)
			})
		}
	}
}

// drain drains a server, and returns a channel that is closed when the server has drained.
func drain(t *testing.T, s *transport.Server) <-chan struct{} {
	drained := make(chan struct{})
	go func() {
		s.Drain(t.Context(), nil)
		close(drained)
	}()
	return drained
}

func TestADrainLetsCallsEnd(t *testing.T) {
	for name, c := range map[string]end{"ours": ours, "grpc-go": grpcGo} {
		t.Run(name, func(t *testing.T) {
			l := listen(t)
			release := make(chan struct{})
			var began atomic.Int64
			s := serve(t, l, transport.ServerConfig{Handler: func(_ any, ss grpc.ServerStream) error {
				began.Add(1)
				<-release
				return echo(nil, ss)
			}})
			cc := c.dial(t, dialer(l))
			results := make(chan error, 10)
			for range 10 {
				go func() {
					results <- cc.Invoke(t.Context(), "/s.S/M", codec.NewFrame(make([]byte, 100)), &codec.Frame{})
				}()
			}
			require.Eventually(t, func() bool { return began.Load() == 10 }, patience, time.Millisecond)
			drained := drain(t, s)
			muxtest.Parked(t, 1, "transport.(*Server).Drain")
			select {
			case <-drained:
				require.Fail(t, "it does not wait for calls")
			default:
			}
			close(release)
			for range 10 {
				assert.NoError(t, <-results)
			}
			select {
			case <-drained:
			case <-time.After(patience):
				require.Fail(t, "it does not end")
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			assert.Equal(t, codes.Unavailable, status.Code(cc.Invoke(ctx, "/s.S/M", &codec.Frame{}, &codec.Frame{})))
		})
	}
}

func TestADrainSendsGOAWAYTwice(t *testing.T) {
	l := listen(t)
	s := serve(t, l, transport.ServerConfig{Handler: echo})
	p := rawClient(t, l)
	p.call(1, []byte("x"))
	require.NoError(t, p.say())
	assert.Equal(t, "0", p.status(1)["grpc-status"])
	drained := drain(t, s)
	f := p.until(func(f http2.Frame) bool { _, ok := f.(*http2.GoAwayFrame); return ok })
	assert.EqualValues(t, 1<<31-1, f.(*http2.GoAwayFrame).LastStreamID)
	ping := p.until(func(f http2.Frame) bool { _, ok := f.(*http2.PingFrame); return ok }).(*http2.PingFrame)
	p.call(3, []byte("on its way"))
	_ = p.framer.WritePing(true, ping.Data)
	p.call(5, []byte("too late"))
	require.NoError(t, p.say())
	var last uint32
	ended := map[uint32]bool{}
	for f := p.next(); f != nil; f = p.next() {
		switch f := f.(type) {
		case *http2.GoAwayFrame:
			last = f.LastStreamID
		case *http2.MetaHeadersFrame:
			ended[f.StreamID] = ended[f.StreamID] || f.StreamEnded()
		}
	}
	assert.EqualValues(t, 3, last)
	assert.Equal(t, map[uint32]bool{3: true}, ended)
	<-drained
}

func TestADrainDoesNotWaitForSilentClients(t *testing.T) {
	l := listen(t)
	s := serve(t, l, transport.ServerConfig{})
	silent, err := net.Dial("unix", l.Addr().String())
	require.NoError(t, err)
	defer silent.Close()
	late := rawClientSilent(t, l)
	require.Eventually(t, func() bool { _, greeting := s.Conns(); return greeting == 2 }, patience, time.Millisecond)
	drained := drain(t, s)
	late.out.WriteString(http2.ClientPreface)
	_ = late.framer.WriteSettings()
	require.NoError(t, late.say())
	assert.NotNil(t, late.until(func(f http2.Frame) bool { _, ok := f.(*http2.GoAwayFrame); return ok }), "the connection ends without a GOAWAY")
	require.NoError(t, late.nc.Close())
	s.EndSilent(nil)
	<-drained
}

// A client that reopens a stream after a drain has ended it uses another connection.
func TestADrainSendsGOAWAYBeforeCallsEnd(t *testing.T) {
	l := listen(t)
	told := make(chan struct{})
	s := serve(t, l, transport.ServerConfig{Handler: func(any, grpc.ServerStream) error { <-told; return nil }})
	var clients []*rawPeer
	for range 20 {
		p := rawClient(t, l)
		p.headers(1, false, p.request())
		require.NoError(t, p.say())
		clients = append(clients, p)
	}
	require.Eventually(t, func() bool { all, greeting := s.Conns(); return all == len(clients) && greeting == 0 }, patience, time.Millisecond)
	go s.Drain(t.Context(), func() { close(told) })
	for _, p := range clients {
		first := p.until(func(f http2.Frame) bool {
			switch f.(type) {
			case *http2.GoAwayFrame, *http2.MetaHeadersFrame:
				return true
			}
			return false
		})
		assert.IsType(t, &http2.GoAwayFrame{}, first)
	}
}

// rawClientSilent connects and sends nothing.
func rawClientSilent(t *testing.T, l net.Listener) *rawPeer {
	nc, err := net.Dial("unix", l.Addr().String())
	require.NoError(t, err)
	return newRawPeer(t, nc)
}

func TestTooManyPingsEndTheConnection(t *testing.T) {
	l := servedAs(t, transport.ServerConfig{Handler: echo})
	p := rawClient(t, l)
	for range 5 {
		_ = p.framer.WritePing(false, [8]byte{})
	}
	require.NoError(t, p.say())
	code, why := p.goAway()
	assert.Equal(t, http2.ErrCodeEnhanceYourCalm, code)
	assert.Equal(t, "too_many_pings", why)
}

func TestASilentClientIsPinged(t *testing.T) {
	testkit.OnSimulatedClock(t, func(t *testing.T) {
		const after, timeout = 5 * time.Second, 3 * time.Second
		s := transport.NewServer(transport.ServerConfig{Handler: echo, PingAfter: after, PingTimeout: timeout})
		defer s.Stop()
		connect := func() net.Conn {
			ours, theirs := net.Pipe()
			go s.ServeConn(ours, nil)
			return theirs
		}
		alive := newClient(t, transport.ClientConfig{Dial: func(context.Context) (net.Conn, error) { return connect(), nil }})
		require.NoError(t, alive.Invoke(t.Context(), "/s.S/M", &codec.Frame{}, &codec.Frame{}))
		p := newRawPeer(t, connect())
		p.out.WriteString(http2.ClientPreface)
		require.NoError(t, p.framer.WriteSettings())
		require.NoError(t, p.say())
		require.NotNil(t, p.until(func(f http2.Frame) bool { _, ok := f.(*http2.PingFrame); return ok }))
		pinged := time.Now()
		require.Nil(t, p.next(), "the silent client is still connected")
		assert.Equal(t, timeout, time.Since(pinged))
		time.Sleep(3 * (after + timeout))
		all, _ := s.Conns()
		assert.Equal(t, 1, all, "the client that answers stays")
	})
}

func TestNothingIsLeftWhenAServerHasStopped(t *testing.T) {
	before := runtime.NumGoroutine()
	l := listen(t)
	s := transport.NewServer(transport.ServerConfig{Handler: echo})
	done := make(chan error)
	go func() { done <- s.Serve(l, nil) }()
	c := newClient(t, transport.ClientConfig{Dial: dialer(l)})
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() { assert.NoError(t, c.Invoke(t.Context(), "/s.S/M", &codec.Frame{}, &codec.Frame{})) })
	}
	all.Wait()
	require.NoError(t, c.Close())
	s.Stop()
	assert.NoError(t, <-done)
	assert.ErrorIs(t, s.Serve(listen(t), nil), transport.ErrServerStopped)
	require.Eventually(t, func() bool { return runtime.NumGoroutine() <= before+1 }, patience, time.Millisecond)
}

func TestAUnaryReplyIsOneWrite(t *testing.T) {
	l := served(t, answer)
	p := rawClient(t, l)
	for f := p.next(); ; f = p.next() { // the first frames of the connection
		if s, ok := f.(*http2.SettingsFrame); ok && s.IsAck() {
			break
		}
	}
	p.headers(1, false, p.requestTo("/bench/1x100"))
	p.data(1, true, prefixed(nil))
	require.NoError(t, p.say())
	b := make([]byte, 1000)
	_ = p.nc.SetReadDeadline(time.Now().Add(patience))
	n, err := p.nc.Read(b)
	require.NoError(t, err)
	b = b[:n]
	frames := 0
	for len(b) >= 9 {
		b = b[9+int(b[1])<<8+int(b[2]):]
		frames++
	}
	assert.Equal(t, 3, frames, "header, message and trailers")
	assert.Empty(t, b)
}

func TestAnEarlyReplyResetsTheRequest(t *testing.T) {
	l := served(t, func(any, grpc.ServerStream) error { return status.Error(codes.Aborted, "enough") })
	p := rawClient(t, l)
	p.headers(1, false, p.request())
	require.NoError(t, p.say())
	assert.Equal(t, "10", p.status(1)["grpc-status"])
	assert.Equal(t, http2.ErrCodeNo, p.reset(1))
	p.data(1, true, []byte("under way")) // no mistake
	p.call(3, nil)
	require.NoError(t, p.say())
	assert.Equal(t, "10", p.status(3)["grpc-status"])
}

func TestAResetEndsTheContextOfTheCall(t *testing.T) {
	ended := make(chan error, 1)
	l := served(t, func(_ any, ss grpc.ServerStream) error {
		err := ss.RecvMsg(&codec.Frame{})
		<-ss.Context().Done()
		ended <- err
		return err
	})
	p := rawClient(t, l)
	p.headers(1, false, p.request())
	_ = p.framer.WriteRSTStream(1, http2.ErrCodeCancel)
	require.NoError(t, p.say())
	assert.Equal(t, codes.Canceled, status.Code(<-ended))
}

func TestAnErrorAfterTheDeadlineIsDeadlineExceeded(t *testing.T) {
	l := served(t, func(_ any, ss grpc.ServerStream) error {
		<-ss.Context().Done()
		return status.Errorf(codes.Internal, "wrapped: %v", ss.Context().Err())
	})
	p := rawClient(t, l)
	p.headers(1, false, p.request("grpc-timeout", "20m"))
	require.NoError(t, p.say())
	assert.Equal(t, "4", p.status(1)["grpc-status"])
}

func TestResetConnectBackoffEndsThePause(t *testing.T) {
	var there atomic.Bool
	l := servedAs(t, transport.ServerConfig{Handler: echo})
	tried := make(chan struct{}, 10)
	c := transport.NewClient(transport.ClientConfig{
		Backoff: backoff.Config{BaseDelay: time.Hour, Multiplier: 1, MaxDelay: time.Hour},
		Dial: func(context.Context) (net.Conn, error) {
			isThere := there.Load()
			tried <- struct{}{}
			if !isThere {
				return nil, net.ErrClosed
			}
			return net.Dial("unix", l.Addr().String())
		}})
	defer c.Close()
	c.Connect()
	<-tried
	there.Store(true)
	for { // until the first attempt has failed, there is no pause
		c.ResetConnectBackoff()
		select {
		case <-tried:
			for c.GetState() != connectivity.Ready {
				require.True(t, c.WaitForStateChange(t.Context(), c.GetState()))
			}
			return
		case <-time.After(time.Millisecond):
		}
	}
}

// After the end of a call has cut off a message, no other message follows on the stream.
func TestNoMessageFollowsACutOffOne(t *testing.T) {
	first, second, goOn := make(chan error, 1), make(chan error, 1), make(chan struct{})
	p := rawClient(t, served(t, func(_ any, ss grpc.ServerStream) error {
		first <- ss.SendMsg(codec.NewFrame(make([]byte, 100_000)))
		<-goOn
		second <- ss.SendMsg(codec.NewFrame([]byte("another message")))
		return nil
	}))
	p.headers(1, true, p.request("grpc-timeout", "100m"))
	require.NoError(t, p.say())
	got := 0
	p.until(func(f http2.Frame) bool { // until the window is used up
		if d, ok := f.(*http2.DataFrame); ok {
			got += len(d.Data())
		}
		return got == 65535
	})
	assert.Error(t, <-first)
	_ = p.framer.WriteWindowUpdate(0, 100_000)
	_ = p.framer.WriteWindowUpdate(1, 100_000)
	_ = p.framer.WritePing(false, [8]byte{1})
	require.NoError(t, p.say())
	p.until(func(f http2.Frame) bool { ping, ok := f.(*http2.PingFrame); return ok && ping.IsAck() })
	close(goOn)
	assert.Error(t, <-second)
	ended := p.until(func(f http2.Frame) bool {
		if d, ok := f.(*http2.DataFrame); ok {
			assert.Empty(t, d.Data(), "a part of another message")
		}
		h, ok := f.(*http2.MetaHeadersFrame)
		return ok && h.StreamEnded()
	})
	assert.NotNil(t, ended)
}
