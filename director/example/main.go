// Command example puts several servers of the API in notes.proto behind one socket:
//
//	example notes.proto notes.sock =first.sock work=second.sock
package main

import (
	"context"
	_ "embed"
	"errors"
	"log"
	"net"
	"os"
	"os/signal"
	"strings"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/director/dial"
	"google.golang.org/grpc"
)

//go:embed notes.yaml
var profile []byte

func run(ctx context.Context, proto, listen string, servers []string) error {
	p, wrong := director.ParseProfile(profile)
	schema, err := codec.CompileProto(ctx, nil, proto)
	if err := errors.Join(wrong, err); err != nil {
		return err
	}
	cfg := director.Config{Profile: p, Schema: schema}
	for _, server := range servers {
		name, path, _ := strings.Cut(server, "=") // the name of the primary is empty
		conn, err := dial.New(dial.Config{Name: name, Address: path, Profile: p, Schema: schema})
		if err != nil {
			return err
		}
		defer conn.Close() // when the last call has ended
		cfg.Backends = append(cfg.Backends, director.Backend{Name: name, Conn: conn})
	}
	d, wrong := director.New(cfg)
	l, err := net.Listen("unix", listen)
	if err := errors.Join(wrong, err); err != nil {
		return err
	}
	s := grpc.NewServer(grpc.ForceServerCodecV2(codec.Raw), grpc.UnknownServiceHandler(d.Handler()))
	defer context.AfterFunc(ctx, s.GracefulStop)()
	return s.Serve(l)
}

func main() {
	if len(os.Args) < 4 {
		log.Fatal("usage: example FILE.proto LISTEN NAME=SOCKET..., with an empty NAME for the primary")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		log.Fatal(err)
	}
}
