package main

import (
	"context"
	"flag"
	"net"

	"github.com/mwitkow/grpc-proxy/proxy"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
)

// serveStock is the process of a proxy built with github.com/mwitkow/grpc-proxy according to its README: it decodes
// messages as messages without fields.
func serveStock(args []string) error {
	fs := flag.NewFlagSet("stock", flag.ContinueOnError)
	socket := fs.String("socket", "", "where to listen")
	connect := fs.String("connect", "", "the socket of the backend")
	if err := fs.Parse(args); err != nil {
		return err
	}
	cc, err := grpc.NewClient("unix:"+*connect, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
	if err != nil {
		return err
	}
	l, err := net.Listen("unix", *socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(16<<20),
		grpc.UnknownServiceHandler(proxy.TransparentHandler(func(ctx context.Context, _ string) (context.Context, grpc.ClientConnInterface, error) {
			md, _ := metadata.FromIncomingContext(ctx)
			return metadata.NewOutgoingContext(ctx, md), cc, nil
		})))
	return server.Serve(l)
}
