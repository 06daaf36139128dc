package plugin_test

import (
	"context"
	"log"
	"os/signal"
	"syscall"

	"github.com/criproxy/criproxy/hook/plugin"
)

// Example is a plugin that gives the containers of batch pods hardly any CPU. It registers itself, and unregisters when it
// ends.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	p := plugin.Plugin{
		Name: "quiet",
		PreCreateContainer: func(_ context.Context, c *plugin.Container) (*plugin.ContainerAnswer, error) {
			answer := plugin.Echo(c)
			if c.GetPodLabels()["tier"] == "batch" {
				answer.ContainerResources.CpuShares = 2
			}
			return answer, nil
		},
	}
	if err := p.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
