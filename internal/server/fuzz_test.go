package server

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/base/recovery"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// FuzzConfig checks that a configuration, from a file or a flag, is either accepted or refused with
// a reason.
func FuzzConfig(f *testing.F) {
	f.Add("listen: /run/x.sock\nbackends:\n- address: /run/a.sock\n- {name: beta.io, address: /run/b.sock, handlers: {kata: qemu}}\n", "/run/a.sock,b:/run/b.sock")
	f.Add("listeners: [{path: /run/y.sock, mode: '0666', access: [{methods: [read-only], uids: [1]}]}]", "b:unix:///x")
	f.Add("listBudget: 99999999999h", "docker")
	f.Add("backends: &a [*a]", ",,")
	f.Add("rules: {fields: {x: y}}\nprofile: /dev/null", ":/")
	f.Fuzz(func(t *testing.T, text, connect string) {
		c := &config.Config{}
		if err := c.Parse("c.yaml", []byte(text)); err != nil {
			require.NotEmpty(t, err.Error())
			return
		}
		if backends, err := config.ParseConnect(connect); err == nil {
			c.Backends = append(c.Backends, backends...)
		}
		if err := c.Check(); err == nil {
			require.NotEmpty(t, c.Backends)
			c.Warnings()
			for i := range c.Backends {
				stackKey(c, i)
			}
		}
	})
}

// misbehave is a runtime that answers with the bytes that the caller wants.
func misbehave(_ any, ss grpc.ServerStream) error {
	md, _ := metadata.FromIncomingContext(ss.Context())
	var request codec.Frame
	err := ss.RecvMsg(&request)
	if len(md["fuzz-how-bin"]) == 0 {
		if err != nil {
			return err
		}
		return ss.SendMsg(&codec.Frame{})
	}
	how, reply := md["fuzz-how-bin"][0][0], []byte(md["fuzz-reply-bin"][0])
	if how&1 != 0 {
		_ = ss.SendHeader(metadata.Pairs("from-bin", string(reply))) // the client may have left
	}
	for range how >> 1 & 3 {
		if err := ss.SendMsg(codec.NewFrame(reply)); err != nil {
			return err
		}
	}
	if how&8 != 0 {
		ss.SetTrailer(metadata.Pairs("end-bin", string(reply)))
	}
	if how&16 != 0 {
		return status.Error(codes.Code(how>>4), string(reply))
	}
	return nil
}

// FuzzProxy sends any frame to any method of a whole proxy, whose runtimes answer with any bytes. It
// checks that the call ends in time, nothing panics, and the proxy goes on.
func FuzzProxy(f *testing.F) {
	dir := testkit.SocketDir(f)
	cfg := &config.Config{Listen: filepath.Join(dir, "front.sock"), StateDir: "none", Hooks: "none"}
	for i, name := range []string{"", "beta.io"} {
		b := config.Backend{Name: name, Address: filepath.Join(dir, fmt.Sprint(i))}
		l, err := net.Listen("unix", b.Address)
		require.NoError(f, err)
		s := grpc.NewServer(grpc.ForceServerCodecV2(codec.Raw), grpc.UnknownServiceHandler(misbehave))
		go func() { _ = s.Serve(l) }() // ends with Stop
		f.Cleanup(s.Stop)
		cfg.Backends = append(cfg.Backends, b)
	}
	p := startProxy(f, cfg)
	cc := connectTo(f, "unix:"+cfg.Listen, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec.Raw)))
	methods := p.record.Schema.Methods()
	call := func(ctx context.Context, method string, frame []byte) error {
		ctx, cancel := context.WithTimeout(ctx, testkit.Patience)
		defer cancel()
		cs, err := cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
		if err != nil {
			return err
		}
		_ = cs.SendMsg(codec.NewFrame(frame)) // RecvMsg returns its error
		_ = cs.CloseSend()
		for {
			if err := cs.RecvMsg(&codec.Frame{}); err != nil {
				return err
			}
		}
	}
	for i := range methods {
		f.Add(uint16(i), "", []byte("\x0a\x0bbeta.io__7f"), byte(2+i%32), []byte("\x0a\x04\x0a\x02id"))
	}
	f.Add(uint16(0), "/what.is.This/Method", []byte("\xff\xff"), byte(19), []byte{})
	f.Add(uint16(0), "/", []byte(nil), byte(6), []byte("\x0a\xff\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, which uint16, name string, request []byte, how byte, reply []byte) {
		if len(request)+len(reply) > 1<<13 {
			t.Skip("headers are smaller")
		}
		method := methods[int(which)%len(methods)].Name
		if strings.HasPrefix(name, "/") {
			method = strings.ToValidUTF8(strings.Map(func(r rune) rune {
				if r <= ' ' || r > '~' {
					return 'x'
				}
				return r
			}, name), "x")
		}
		panics := recovery.Count()
		md := metadata.Pairs("fuzz-how-bin", string([]byte{how}), "fuzz-reply-bin", string(reply))
		quick, cancel := context.WithTimeout(context.Background(), testkit.Patience)
		if testkit.Endless(method) { // an endless stream goes on when a runtime's ends
			quick, cancel = context.WithTimeout(context.Background(), 5*time.Millisecond)
		}
		defer cancel()
		err := call(metadata.NewOutgoingContext(quick, md), method, request)
		if status.Code(err) == codes.DeadlineExceeded && !testkit.Endless(method) && how>>4 != byte(codes.DeadlineExceeded) {
			t.Fatalf("%s did not end: %v", method, err)
		}
		if n := recovery.Count(); n != panics {
			t.Fatalf("%s panicked: %v", method, err)
		}
		err = call(context.Background(), "/runtime.v1.RuntimeService/Version", nil)
		if code := status.Code(err); err.Error() != "EOF" && code != codes.Unavailable { // Unavailable: its answer may have made the runtime count as gone
			t.Fatalf("after %s: %v", method, err)
		}
	})
}
