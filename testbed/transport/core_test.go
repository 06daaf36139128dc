package transport_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/testing/bounded"
	"github.com/criproxy/criproxy/internal/testing/untested"
	"github.com/criproxy/criproxy/internal/transport"
)

func TestMain(m *testing.M) { os.Exit(bounded.Run(m)) }

// python returns a command that uses gRPC's C core, from Debian's python3-grpcio.
func python(t *testing.T, args ...string) *exec.Cmd {
	for _, p := range []string{"/usr/bin/python3", "python3"} {
		if bounded.Command(t, p, "-c", "import grpc").Run() == nil {
			return bounded.Command(t, p, append([]string{"testdata/peer.py"}, args...)...)
		}
	}
	untested.Skip(t, "there is no python3-grpcio: apt-get install python3-grpcio")
	return nil
}

// method is a handler like the one in peer.py.
func method(_ any, ss grpc.ServerStream) error {
	in, _ := metadata.FromIncomingContext(ss.Context())
	name, _ := grpc.MethodFromServerStream(ss)
	switch name {
	case "/s.S/Echo":
		if err := ss.SendHeader(metadata.MD{"x-header": in["x-sent"], "x-header-bin": in["x-sent-bin"]}); err != nil {
			return err
		}
		ss.SetTrailer(metadata.Pairs("x-trailer-bin", "\x00\xff"))
		for {
			var f codec.Frame
			if err := ss.RecvMsg(&f); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
			if err := ss.SendMsg(&f); err != nil {
				return err
			}
			f.Free()
		}
	case "/s.S/Fail":
		return status.Error(codes.NotFound, "50% of \u00fc")
	case "/s.S/Hang":
		<-ss.Context().Done()
		return status.FromContextError(ss.Context().Err()).Err()
	}
	return status.Error(codes.Unimplemented, "no such method")
}

func TestTheCCoreAsClient(t *testing.T) {
	l := listen(t)
	cmd := python(t, "call", "unix:"+l.Addr().String())
	s := transport.NewServer(transport.ServerConfig{Handler: method})
	go s.Serve(l, nil)
	t.Cleanup(s.Stop)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
}

func TestTheCCoreAsServer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	cmd := python(t, "serve", "unix:"+path)
	_, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	defer cmd.Wait()
	defer cmd.Process.Kill()
	ready, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err, ready)

	client := transport.NewClient(transport.ClientConfig{Dial: func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}})
	defer client.Close()
	c := codec.Conn{Caller: client}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	body := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(i * 7)
		}
		return b
	}
	for _, n := range []int{0, 1, 1000, 16000, 20000, 65535, 1 << 20, 10 << 20} {
		var header, trailer metadata.MD
		var reply codec.Frame
		with := metadata.NewOutgoingContext(ctx, metadata.Pairs("x-sent", "1", "x-sent-bin", "\x00\xff"))
		require.NoError(t, c.Invoke(with, "/s.S/Echo", codec.NewFrame(body(n)), &reply, grpc.Header(&header), grpc.Trailer(&trailer)))
		assert.Equal(t, body(n), append([]byte{}, reply.Bytes()...))
		assert.Equal(t, []string{"1"}, header["x-header"])
		assert.Equal(t, []string{"\x00\xff"}, header["x-header-bin"])
		assert.Equal(t, []string{"\x00\xff"}, trailer["x-trailer-bin"])
	}
	err = c.Invoke(ctx, "/s.S/Fail", &codec.Frame{}, &codec.Frame{})
	assert.Equal(t, codes.NotFound, status.Code(err), err)
	assert.Contains(t, []string{"50% of \u00fc", "no"}, status.Convert(err).Message()) // the details have another one

	cs, err := c.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/s.S/Echo")
	require.NoError(t, err)
	var sending sync.WaitGroup
	sending.Go(func() {
		for i := range 2000 {
			assert.NoError(t, cs.SendMsg(codec.NewFrame(body(i))))
		}
		assert.NoError(t, cs.CloseSend())
	})
	for i := range 2000 {
		var f codec.Frame
		require.NoError(t, cs.RecvMsg(&f))
		assert.Equal(t, i, f.Len())
	}
	assert.ErrorIs(t, cs.RecvMsg(&codec.Frame{}), io.EOF)
	sending.Wait()

	var all sync.WaitGroup
	for range 32 {
		all.Go(func() {
			for i := range 50 {
				var reply codec.Frame
				if assert.NoError(t, c.Invoke(ctx, "/s.S/Echo", codec.NewFrame(body(i*397)), &reply)) {
					assert.Equal(t, i*397, reply.Len())
				}
			}
		})
	}
	all.Wait()
}

// nghttp2 is a third implementation of HTTP/2.
func TestNghttp2AsClient(t *testing.T) {
	h2load, err := exec.LookPath("h2load")
	if err != nil {
		untested.Skip(t, "there is no h2load: apt-get install nghttp2-client")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := transport.NewServer(transport.ServerConfig{Handler: method})
	go s.Serve(l, nil)
	t.Cleanup(s.Stop)
	dir := t.TempDir()
	for name, n := range map[string]int{"empty": 0, "short": 100, "long": 300_000} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(dir, name)
			message := append([]byte{0, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}, make([]byte, n)...)
			require.NoError(t, os.WriteFile(file, message, 0o600))
			out, err := bounded.Command(t, h2load, "-n", "2000", "-c", "4", "-m", "32", "-d", file,
				"-H", "content-type: application/grpc", "-H", "te: trailers", fmt.Sprintf("http://%s/s.S/Echo", l.Addr())).CombinedOutput()
			require.NoError(t, err, string(out))
			assert.Contains(t, string(out), "2000 done, 2000 succeeded, 0 failed, 0 errored, 0 timeout")
			assert.Contains(t, string(out), "2000 2xx")
		})
	}
	nghttp, err := exec.LookPath("nghttp")
	require.NoError(t, err)
	out, err := bounded.Command(t, nghttp, "-nv", "-d", filepath.Join(dir, "short"), "-H", "content-type: application/grpc", "-p", "16",
		fmt.Sprintf("http://%s/s.S/Echo", l.Addr())).CombinedOutput()
	require.NoError(t, err, string(out))
	assert.Regexp(t, `recv \(stream_id=\d+\) grpc-status: 0`, string(out))
}
