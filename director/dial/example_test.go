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

// Example calls two servers, one of which goes away. The error names it, and the other one answers.
func Example() {
	dir, err := os.MkdirTemp("", "dial")
	check(err)
	defer os.RemoveAll(dir)
	servers, conns := map[string]*grpc.Server{}, map[string]*dial.Conn{}
	for _, name := range []string{"primary", "beta.io"} {
		path := filepath.Join(dir, name+".sock")
		l, err := net.Listen("unix", path)
		check(err)
		servers[name] = grpc.NewServer()
		healthpb.RegisterHealthServer(servers[name], health.NewServer())
		go servers[name].Serve(l)
		defer servers[name].Stop()
		conns[name], err = dial.New(dial.Config{Name: name, Address: path})
		check(err)
		defer conns[name].Close()
	}
	ask := func() {
		for _, name := range []string{"primary", "beta.io"} {
			reply, err := healthpb.NewHealthClient(conns[name]).Check(context.Background(), &healthpb.HealthCheckRequest{})
			fmt.Println(name, reply.GetStatus(), status.Code(err), conns[name].Absent(context.Background()))
		}
	}
	ask()
	servers["beta.io"].Stop()
	ask()
	// Output:
	// primary SERVING OK false
	// beta.io SERVING OK false
	// primary SERVING OK false
	// beta.io UNKNOWN Unavailable true
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
