// Command example is a plugin that sets the CPU shares of containers by the annotation
// example.org/priority of their pod.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
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

func usage() {
	fmt.Fprintf(flag.CommandLine.Output(), `%s [FOLDER] serves a plugin for criproxy until Ctrl-C: it sets the CPU shares of containers by the annotation
example.org/priority of their pod, which is low, normal or high. It registers in FOLDER, with its socket there (default
%s, and the socket in %s).
`, os.Args[0], plugin.DefaultFolder, plugin.DefaultSockets)
}

func main() {
	flag.Usage = usage
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	p := plugin.Plugin{Name: "priority", PreCreateContainer: setShares, PreUpdateContainerResources: setShares}
	if flag.Arg(0) != "" {
		folder, err := filepath.Abs(flag.Arg(0)) // criproxy does not run in the folder of this process
		if err != nil {
			log.Fatal(err)
		}
		p.Folder, p.Socket = folder, filepath.Join(folder, "priority.sock")
	}
	if err := p.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
