package cli

import (
	"context"
	"fmt"
	"slices"

	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/base/host"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/server"
)

// wiring is what a criproxy that runs serves, and what it calls.
type wiring struct {
	pid int
	*config.Config
}

// socketsOf returns the sockets for clients of a criproxy with a configuration.
func socketsOf(c *config.Config) (paths []string) {
	for _, l := range c.Sockets() {
		paths = append(paths, l.Path)
	}
	return paths
}

// wirings returns those of the criproxys on this machine.
func wirings(ctx context.Context) []wiring {
	var running []wiring
	for _, one := range instances(ctx) {
		if s, err := askOne[config.Settings](ctx, one.Admin, "settings", server.AskTimeout); err == nil {
			running = append(running, wiring{one.PID, configOf(s)})
		}
	}
	return running
}

// circles says of each backend of c how it leads back to a socket of c, over other criproxys of this machine; the empty text
// if it does not. A call of check does not show it: the criproxy that serves c refuses only the calls that it made itself.
func circles(ctx context.Context, c *config.Config) []string {
	all := make([]string, len(c.Backends))
	if len(all) == 0 {
		return nil
	}
	running := wirings(ctx)
	for i, b := range c.Backends {
		for _, address := range b.AllAddresses() {
			if way, ok := wayBack(socketsOf(c), address, running); ok {
				all[i] = "leads back to this criproxy: " + address + way
			}
		}
	}
	return all
}

// wayBack returns how an address leads to one of the sockets in to, over the criproxys that run, and whether it does.
func wayBack(to []string, address string, running []wiring) (way string, ok bool) {
	serves := func(sockets []string) bool {
		return slices.ContainsFunc(sockets, func(path string) bool { return host.SameSocket(path, address) })
	}
	if serves(to) {
		return "", true
	}
	i := slices.IndexFunc(running, func(w wiring) bool { return serves(socketsOf(w.Config)) })
	if i < 0 {
		return "", false
	}
	over := running[i]
	others := slices.Delete(slices.Clone(running), i, i+1) // a way goes over each of them once
	for _, b := range over.Backends {
		for _, next := range b.AllAddresses() {
			if way, ok := wayBack(to, next, others); ok {
				return fmt.Sprintf(" is a socket of the criproxy with process %d, whose backend %s is %s%s", over.pid, director.Backend{Name: b.Name}, next, way), true
			}
		}
	}
	return "", false
}
