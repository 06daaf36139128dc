package dial_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/director/dial"
)

// Example calls a server that goes away. The error names it.
func Example() {
	dir, err := os.MkdirTemp("", "dial")
	check(err)
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "beta.sock")
	l, err := net.Listen("unix", path)
	check(err)
	srv := grpc.NewServer()
	healthpb.RegisterHealthServer(srv, health.NewServer())
	go srv.Serve(l)

	conn, err := dial.New(dial.Config{Name: "beta.io", Address: path})
	check(err)
	defer conn.Close()
	client := healthpb.NewHealthClient(conn)
	reply, err := client.Check(context.Background(), &healthpb.HealthCheckRequest{})
	fmt.Println(reply.GetStatus(), err)
	srv.Stop()
	_, err = client.Check(context.Background(), &healthpb.HealthCheckRequest{})
	fmt.Println(status.Code(err), conn.Absent(context.Background()))
	// Output:
	// SERVING <nil>
	// Unavailable true
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
