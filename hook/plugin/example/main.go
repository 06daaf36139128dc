// Command example is a plugin: it gives containers cpu shares by the annotation
// example.org/priority of their pod.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/criproxy/criproxy/hook/plugin"
)

// shares are the cpu shares by priority. A pod without one keeps what it has.
var shares = map[string]int64{"low": 2, "normal": 1024, "high": 8192}

func setShares(_ context.Context, c *plugin.Container) (*plugin.ContainerAnswer, error) {
	answer := plugin.Echo(c)
	if n, ok := shares[c.GetPodAnnotations()["example.org/priority"]]; ok {
		answer.ContainerResources.CpuShares = n
	}
	return answer, nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	p := plugin.Plugin{Name: "priority", PreCreateContainer: setShares, PreUpdateContainerResources: setShares}
	if len(os.Args) > 1 { // another folder to register in, for its socket as well
		p.Folder, p.Socket = os.Args[1], os.Args[1]+"/priority.sock"
	}
	if err := p.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
