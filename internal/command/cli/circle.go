package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/criproxy/criproxy/internal/base/host"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/server"
)

// wiring is the sockets of a criproxy and the addresses of its backends.
type wiring struct {
	pid      int
	sockets  []string
	backends [][2]string // name and address
}

// wiringOf reads the settings of a criproxy.
func wiringOf(pid int, s config.Settings) wiring {
	w := wiring{pid: pid}
	for _, key := range slices.Sorted(maps.Keys(s)) {
		var path string
		if json.Unmarshal([]byte(s[key]), &path) != nil {
			continue // it is not a text
		}
		name, what, _ := strings.Cut(key, "].")
		backend, isBackend := strings.CutPrefix(name, "backends[")
		switch {
		case key == "listen", strings.HasPrefix(key, "listeners[") && what == "path":
			w.sockets = append(w.sockets, path)
		case isBackend && (what == "address" || strings.HasPrefix(what, "addresses[")):
			w.backends = append(w.backends, [2]string{backend, path})
		}
	}
	return w
}

// wirings returns those of the criproxys on this machine.
func wirings(ctx context.Context) []wiring {
	var running []wiring
	for _, one := range instances(ctx) {
		if s, err := askOne[config.Settings](ctx, one.Admin, "settings", server.AskTimeout); err == nil {
			running = append(running, wiringOf(one.PID, s))
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
	mine := wiringOf(0, c.Settings())
	for i, b := range c.Backends {
		for _, address := range b.AllAddresses() {
			if way, ok := wayBack(mine.sockets, address, running); ok {
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
	i := slices.IndexFunc(running, func(w wiring) bool { return serves(w.sockets) })
	if i < 0 {
		return "", false
	}
	over := running[i]
	others := slices.Delete(slices.Clone(running), i, i+1) // a way goes over each of them once
	for _, b := range over.backends {
		if way, ok := wayBack(to, b[1], others); ok {
			return fmt.Sprintf(" is a socket of the criproxy with process %d, whose backend %s is %s%s", over.pid, b[0], b[1], way), true
		}
	}
	return "", false
}
