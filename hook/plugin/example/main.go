// Command example is a plugin that sets the CPU shares of containers by the annotation
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

// shares are the CPU shares by priority. Without the annotation a container keeps its shares.
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
	if len(os.Args) > 1 { // another folder, for the plugin's file and socket
		p.Folder, p.Socket = os.Args[1], os.Args[1]+"/priority.sock"
	}
	if err := p.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
