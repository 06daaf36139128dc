package director_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

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
// chooses a connection for each call. The connection of a Director chooses by what the call says, and
// joins the lists of all backends.
func Example_streamDirector() {
	profile, err := director.ParseProfile([]byte(`
versions: [{package: grpc.health.v1}]
names: {service: {front: "{backend}/{name}", bare: anyone}}
fields: {HealthCheckRequest.service: service}
methods: {List: {all: concat}}
`))
	check(err)
	dir, err := os.MkdirTemp("", "mux")
	check(err)
	defer os.RemoveAll(dir)
	cfg := director.Config{Profile: profile, Schema: codec.NewSchema(healthpb.File_grpc_health_v1_health_proto)}
	for _, name := range []string{"", "beta.io"} {
		backend := filepath.Join(dir, name+".sock")
		defer serveHealth(backend, "db of "+name)()
		conn, err := dial.New(dial.Config{Name: name, Address: backend, GRPC: true})
		check(err)
		defer conn.Close()
		cfg.Backends = append(cfg.Backends, director.Backend{Name: name, Conn: conn})
	}
	mux, err := director.New(cfg)
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
	client := healthpb.NewHealthClient(cc)
	reply, err := client.Check(context.Background(), &healthpb.HealthCheckRequest{Service: "beta.io/db of beta.io"})
	fmt.Println(reply.GetStatus(), err)
	list, err := client.List(context.Background(), &healthpb.HealthListRequest{})
	fmt.Printf("%q %v\n", slices.Sorted(maps.Keys(list.GetStatuses())), err)
	// Output:
	// SERVING <nil>
	// ["" "db of " "db of beta.io"] <nil>
}
