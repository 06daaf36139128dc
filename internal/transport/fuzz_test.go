package transport_test

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/testing/testkit"
	"github.com/criproxy/criproxy/internal/transport"
)

// socketPair returns two ends of a connection: unix sockets, or pipes within the process.
func socketPair(t testing.TB, sockets bool) (a, b net.Conn) {
	if !sockets {
		return net.Pipe()
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		ends[i], err = net.FileConn(f)
		require.NoError(t, err)
		require.NoError(t, f.Close())
	}
	return ends[0], ends[1]
}

// frames turns the fuzzer's input into frames: of each a type, flags, a stream, a length, and a
// payload. The payload of a header block is one of blocks, and may have bytes after it.
func frames(in []byte, blocks [][]byte) []byte {
	var out []byte
	for len(in) >= 4 {
		kind, flags, id, n := in[0]%11, in[1], in[2]%8, int(in[3])
		in = in[4:]
		payload := in[:min(n, len(in))]
		in = in[len(payload):]
		if http2.FrameType(kind) == http2.FrameHeaders && len(payload) > 0 && flags&0x28 == 0 {
			payload = append(append([]byte{}, blocks[int(payload[0])%len(blocks)]...), payload[1:]...)
		}
		if http2.FrameType(kind) == http2.FrameData && n > 200 { // a long one
			payload = append(append([]byte{}, payload...), make([]byte, n*64)...)
		}
		out = append(out, byte(len(payload)>>16), byte(len(payload)>>8), byte(len(payload)), kind, flags)
		out = binary.BigEndian.AppendUint32(out, uint32(id))
		out = append(out, payload...)
	}
	return out
}

func blockOf(fields ...string) []byte {
	var b []byte
	for i := 0; i < len(fields); i += 2 {
		b = append(b, 0) // a literal without indexing: the fuzzer may cut it
		for _, s := range fields[i : i+2] {
			b = append(append(b, byte(len(s))), s...)
		}
	}
	return b
}

// check reads the frames of our end until the connection ends, and checks that it may send them.
func check(t *testing.T, nc net.Conn, begins func(id uint32) bool) {
	fr := http2.NewFramer(nil, nc)
	fr.SetMaxReadFrameSize(1 << 24)
	fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	over := map[uint32]bool{}
	for {
		f, err := fr.ReadFrame()
		if err != nil {
			var broken http2.ConnectionError
			require.NotErrorAs(t, err, &broken, "our end does not speak HTTP/2")
			require.NotErrorIs(t, err, http2.ErrFrameTooLarge)
			return
		}
		id := f.Header().StreamID
		switch f := f.(type) {
		case *http2.DataFrame:
			require.False(t, over[id], "DATA after the end of a stream")
			over[id] = f.StreamEnded()
		case *http2.MetaHeadersFrame:
			require.False(t, over[id], "HEADERS after the end of a stream")
			require.True(t, begins(id))
			over[id] = f.StreamEnded()
		case *http2.RSTStreamFrame:
			over[id] = true
		}
	}
}

func FuzzServer(f *testing.F) {
	blocks := [][]byte{
		blockOf(":method", "POST", ":scheme", "http", ":path", "/s.S/M", ":authority", "x", "content-type", "application/grpc"),
		blockOf(":method", "POST", ":scheme", "http", ":path", "/s.S/M", ":authority", "x", "content-type", "application/grpc", "grpc-timeout", "1m"),
		blockOf(":method", "POST", ":scheme", "http", ":path", "/s.S/M", ":authority", "x", "content-type", "application/grpc", "grpc-encoding", "gzip"),
		blockOf(":method", "GET", ":scheme", "http", ":path", "/", ":authority", "x"),
		blockOf("x", "y"),
	}
	f.Add([]byte{}, true)
	f.Add([]byte{4, 0, 0, 0, 1, 4, 1, 1, 0, 0, 1, 1, 7, 0, 0, 0, 0, 2, 'h', 'i'}, true)
	f.Add([]byte{4, 0, 0, 6, 0, 4, 0, 0, 0, 1, 1, 4, 1, 1, 0, 0, 1, 1, 7, 0, 0, 0, 0, 2, 'h', 'i', 8, 0, 1, 4, 0, 0, 0, 9, 8, 0, 0, 4, 0, 0, 0, 9}, true)
	f.Add([]byte{4, 0, 0, 0, 1, 4, 3, 1, 1, 0, 0, 3, 250, 0, 0, 1, 0, 0, 3, 0, 3, 4, 0, 0, 0, 8}, false)
	f.Add([]byte{4, 0, 0, 0, 1, 0, 1, 1, 2, 9, 0, 1, 3, 0, 1, 2, 9, 4, 1, 0, 6, 0, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8}, false)
	f.Add([]byte{4, 0, 0, 0, 1, 5, 1, 1, 3, 7, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1, 5, 0, 0, 0, 1, 1}, true)
	serves := func(t *testing.T, in []byte, sockets bool) {
		p := newPurse(64 << 10)
		s := transport.NewServer(transport.ServerConfig{
			Budget: p, Pings: anyPings, MaxMessage: 1 << 20, MaxStreams: 3, MaxHeaders: 4 << 10,
			Handler: func(_ any, ss grpc.ServerStream) error {
				transport.Unary(ss.Context())
				return echo(nil, ss)
			},
		})
		defer s.Stop()
		ours, theirs := socketPair(t, sockets)
		var all sync.WaitGroup
		all.Go(func() { s.ServeConn(ours, nil) })
		all.Go(func() { check(t, theirs, func(id uint32) bool { return id%2 == 1 && id < 8 }) })
		_ = theirs.SetDeadline(time.Now().Add(patience))
		if _, err := theirs.Write(append([]byte(http2.ClientPreface), frames(in, blocks)...)); err == nil {
			halfClose(theirs)
		}
		all.Wait()
		time.AfterFunc(0, func() { s.EndSilent(nil) })
		s.Drain(t.Context(), nil)
		require.Zero(t, p.taken.Load(), "memory is not given back")
	}
	f.Fuzz(func(t *testing.T, in []byte, sockets bool) {
		if sockets {
			serves(t, in, sockets)
			return
		}
		testkit.OnSimulatedClock(t, func(t *testing.T) {
			began := time.Now()
			serves(t, in, sockets)
			require.Less(t, time.Since(began), patience/2, "the server waits for a peer that has gone")
		})
	})
}

// halfClose ends our half of a connection, or closes the connection if it has no halves.
func halfClose(nc net.Conn) {
	if half, ok := nc.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		return
	}
	_ = nc.Close()
}

func FuzzClient(f *testing.F) {
	blocks := [][]byte{
		blockOf(":status", "200", "content-type", "application/grpc"),
		blockOf(":status", "200", "content-type", "application/grpc", "grpc-status", "5", "grpc-message", "no"),
		blockOf("grpc-status", "0", "x-t", "1"),
		blockOf(":status", "503", "content-type", "text/html"),
		blockOf(":status", "100"),
	}
	f.Add([]byte{}, true)
	f.Add([]byte{1, 4, 1, 1, 0, 0, 0, 1, 7, 0, 0, 0, 0, 2, 'h', 'i', 1, 5, 1, 1, 2}, true)
	f.Add([]byte{1, 4, 3, 1, 0, 0, 0, 3, 250, 0, 0, 1, 0, 0, 7, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 0, 1, 5, 1, 1, 1}, false)
	f.Add([]byte{3, 0, 1, 4, 0, 0, 0, 7, 1, 4, 3, 1, 4, 1, 4, 3, 1, 0, 0, 1, 3, 3, 0, 0, 0}, true)
	f.Fuzz(func(t *testing.T, in []byte, sockets bool) {
		p := newPurse(64 << 10)
		ours, theirs := socketPair(t, sockets)
		first := make(chan net.Conn, 1)
		first <- ours
		c := newClient(t, transport.ClientConfig{Budget: p, MaxMessage: 1 << 20, MaxHeaders: 4 << 10, Dial: func(context.Context) (net.Conn, error) {
			select {
			case nc := <-first:
				return nc, nil
			default:
				return nil, io.EOF
			}
		}})
		var all, begun sync.WaitGroup
		begun.Add(2)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		all.Go(func() {
			var reply codec.Frame
			_ = c.Invoke(ctx, "/s.S/M", codec.NewFrame([]byte("request")), &reply)
			reply.Free()
		})
		all.Go(func() {
			cs, err := c.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/s.S/M")
			if err != nil {
				return
			}
			_ = cs.SendMsg(codec.NewFrame(make([]byte, 100_000)))
			_ = cs.CloseSend()
			for {
				var f codec.Frame
				if cs.RecvMsg(&f) != nil {
					return
				}
				f.Free()
			}
		})
		all.Go(func() {
			_, _ = io.CopyN(io.Discard, theirs, int64(len(http2.ClientPreface)))
			check(t, theirs, func(id uint32) bool {
				if id == 1 || id == 3 { // the client retries a refused call
					begun.Done()
				}
				return id%2 == 1
			})
		})
		_ = theirs.SetDeadline(time.Now().Add(patience))
		_, err := theirs.Write([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0}) // settings
		require.NoError(t, err)
		begun.Wait()
		if _, err := theirs.Write(frames(in, blocks)); err == nil {
			halfClose(theirs)
		}
		all.Wait()
		require.NoError(t, ctx.Err(), "a call waits for a server that has gone")
		require.NoError(t, c.Close())
		_ = theirs.Close()
		require.Zero(t, p.taken.Load(), "memory is not given back")
	})
}
