package director_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/director/dial"
)

// Example puts two servers of grpc.health.v1 behind one socket. In front, the services of the
// second server are called beta.io/NAME.
func Example() {
	profile, err := director.ParseProfile([]byte(`
versions: [{package: grpc.health.v1}]
names: {service: {front: "{backend}/{name}", bare: anyone}}
fields: {HealthCheckRequest.service: service}
`))
	check(err)
	dir, err := os.MkdirTemp("", "mux")
	check(err)
	defer os.RemoveAll(dir)

	cfg := director.Config{Profile: profile, Schema: codec.NewSchema(healthpb.File_grpc_health_v1_health_proto)}
	for _, name := range []string{"", "beta.io"} {
		path := filepath.Join(dir, name+".sock")
		stop := serveHealth(path, "db of "+name)
		defer stop()
		conn, err := dial.New(dial.Config{Name: name, Address: path})
		check(err)
		defer conn.Close()
		cfg.Backends = append(cfg.Backends, director.Backend{Name: name, Conn: conn})
	}
	mux, err := director.New(cfg)
	check(err)
	front := filepath.Join(dir, "mux.sock")
	defer serve(front, grpc.NewServer(grpc.ForceServerCodecV2(codec.Raw), grpc.UnknownServiceHandler(mux.Handler())))()

	cc, err := grpc.NewClient("unix:"+front, grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(err)
	defer cc.Close()
	client := healthpb.NewHealthClient(cc)
	for _, service := range []string{"db of ", "beta.io/db of beta.io", "beta.io/db of "} {
		reply, err := client.Check(context.Background(), &healthpb.HealthCheckRequest{Service: service})
		fmt.Println(service, reply.GetStatus(), err)
	}
	// Output:
	// db of  SERVING <nil>
	// beta.io/db of beta.io SERVING <nil>
	// beta.io/db of  UNKNOWN rpc error: code = NotFound desc = unknown service
}

func serveHealth(path, service string) (stop func()) {
	h := health.NewServer()
	h.SetServingStatus(service, healthpb.HealthCheckResponse_SERVING)
	srv := grpc.NewServer()
	healthpb.RegisterHealthServer(srv, h)
	return serve(path, srv)
}

func serve(path string, srv *grpc.Server) (stop func()) {
	l, err := net.Listen("unix", path)
	check(err)
	go srv.Serve(l)
	return srv.Stop
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
