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

// A server serves clients. There is one for each data path, with the promises of [transport.Server].
type server interface {
	grpc.ServiceRegistrar
	Serve(l net.Listener, shake transport.Handshake) error
	Drain(ctx context.Context, announced func())
	EndSilent(of net.Listener)
	Trim(of net.Listener, most int, silent func(net.Conn) bool) transport.Crowd
	Peers() (known []credentials.AuthInfo, greeting []net.Listener)
	Stop()
}

// newServer returns the server of a data path.
func newServer(path string, cfg transport.ServerConfig) server {
	if path == config.GRPCPath {
		return grpcgo.NewServer(cfg)
	}
	return transport.NewServer(cfg)
}
