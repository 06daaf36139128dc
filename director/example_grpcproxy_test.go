package director_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/mwitkow/grpc-proxy/proxy"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/director/dial"
)

// A program that forwards calls with github.com/mwitkow/grpc-proxy already has a StreamDirector, which
// chooses a connection for each call. The connection of a Director chooses by what the call says.
func Example_streamDirector() {
	dir, err := os.MkdirTemp("", "mux")
	check(err)
	defer os.RemoveAll(dir)
	backend := filepath.Join(dir, "backend.sock")
	defer serveHealth(backend, "db")()
	conn, err := dial.New(dial.Config{Address: backend, GRPC: true})
	check(err)
	defer conn.Close()

	mux, err := director.New(director.Config{Schema: codec.NewSchema(healthpb.File_grpc_health_v1_health_proto), Backends: []director.Backend{{Conn: conn}}})
	check(err)
	choose := func(ctx context.Context, method string) (context.Context, grpc.ClientConnInterface, error) {
		sent, _ := metadata.FromIncomingContext(ctx)
		return metadata.NewOutgoingContext(ctx, sent.Copy()), mux, nil
	}
	front := filepath.Join(dir, "front.sock")
	defer serve(front, grpc.NewServer(grpc.ForceServerCodecV2(codec.Raw), grpc.UnknownServiceHandler(proxy.TransparentHandler(choose))))()

	cc, err := grpc.NewClient("unix:"+front, grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(err)
	defer cc.Close()
	reply, err := healthpb.NewHealthClient(cc).Check(context.Background(), &healthpb.HealthCheckRequest{Service: "db"})
	fmt.Println(reply.GetStatus(), err)
	// Output: SERVING <nil>
}
