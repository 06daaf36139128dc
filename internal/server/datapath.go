package server

import (
	"context"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/transport"
	"github.com/criproxy/criproxy/internal/transport/grpcgo"
)

// A server serves clients. There is one for each data path, with the promises of [transport.Server]. It is safe for concurrent
// use.
type server interface {
	grpc.ServiceRegistrar
	Serve(l net.Listener, shake transport.Handshake) error
	Drain(ctx context.Context, announced func())
	EndSilent(of net.Listener)
	Trim(of net.Listener, most int, silent func(net.Conn) bool) transport.Crowd
	Peers() (known []credentials.AuthInfo, greeting []net.Listener)
	Stop()
}

// dataPaths are the data paths, by their names in the configuration, with all that differs between them. Nothing else in this
// package asks which one it is. A reload does not change the data path: the server has it from the beginning.
var dataPaths = map[string]struct {
	newServer func(transport.ServerConfig) server
	grpc      bool                                                                     // see [dial.Config]
	pass      func(context.Context, grpc.ClientConnInterface, grpc.ServerStream) error // see [director.Config]
	cure      bool                                                                     // when it fails, the other one is the cure
}{
	config.OwnPath:  {newServer: func(cfg transport.ServerConfig) server { return transport.NewServer(cfg) }, cure: true},
	config.GRPCPath: {newServer: func(cfg transport.ServerConfig) server { return grpcgo.NewServer(cfg) }, grpc: true, pass: grpcgo.Pass},
}
