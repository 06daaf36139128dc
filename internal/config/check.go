package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/base/host"
	"github.com/criproxy/criproxy/internal/base/suggest"
	"github.com/criproxy/criproxy/internal/profile"
	"github.com/criproxy/criproxy/internal/transport"
)

// DefaultRecorder is how many bytes the flight recorder keeps by default.
const DefaultRecorder = 16 << 20

// handlersMap is the name that criadapter's profile has for the setting handlers.
const handlersMap = "handlers"

// Check completes c with the defaults and puts the primary first. Its error names every mistake.
func (c *Config) Check() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	c.Listen = cmp.Or(c.Listen, DefaultListen)
	if err := CheckSocketPath(c.Listen); err != nil {
		fail("listen: %w", err)
	}
	switch {
	case c.Admin == "none":
		c.Admin = ""
	case c.Admin != "":
		if err := CheckSocketPath(c.Admin); err != nil {
			fail("admin: %w", err)
		}
		if host.SameSocket(c.Admin, c.Listen) {
			fail("admin: %s is also the socket of listen, where kubelet would reach criproxy's own commands; choose another path", c.Admin)
		}
	default:
		// If the path is too long there is no such socket. That is no mistake in the configuration.
		if path := AdminBeside(c.Listen); CheckSocketPath(path) == nil {
			c.Admin = path
		}
	}
	if c.Metrics != "" {
		if _, port, err := net.SplitHostPort(c.Metrics); err != nil || port == "" {
			fail("metrics: %q: want HOST:PORT, such as 127.0.0.1:9410", c.Metrics)
		}
	}
	if !isHTTP(c.Tracing) {
		fail("tracing: %q: want http://HOST:PORT or https://HOST:PORT, where a collector accepts OTLP over gRPC", c.Tracing)
	}
	c.checkListeners(fail)
	switch {
	case len(c.Backends) > 0 || c.NoBackends:
	case c.file != "":
		fail("%s: there is no runtime to connect to: the file has no backends, and the command line has no -connect; write backends: [{address: /run/containerd/containerd.sock}]", c.file)
	default:
		fail("no runtime to connect to: use -connect /run/containerd/containerd.sock, or backends in a -config file")
	}
	primary := -1
	names := map[string]int{}
	for i, b := range c.Backends {
		at := fmt.Sprintf("backends[%d]", i)
		b.check(at, fail)
		for _, address := range b.AllAddresses() {
			if address == "" {
				continue
			}
			if host.SameSocket(address, c.Admin) {
				fail("%s: %s is also the admin socket; choose another one with -admin", at, address)
			}
			if host.SameSocket(address, c.Listen) {
				fail("%s: %s is also the socket of listen; criproxy would call itself", at, address)
			}
			for j, before := range c.Backends[:i] {
				if slices.ContainsFunc(before.AllAddresses(), func(other string) bool { return host.SameSocket(address, other) }) {
					fail("%s: %s is already the address of backends[%d]; its pods would be listed twice", at, address, j)
				}
			}
		}
		if !slices.Contains([]backend.Policy{"", backend.LastKnown, backend.Fail, backend.Skip}, backend.Policy(b.Policy)) {
			fail("%s.policy: %q: want %q, %q or %q", at, b.Policy, backend.LastKnown, backend.Fail, backend.Skip)
		}
		if b.MaxCalls < 0 {
			fail("%s.maxCalls: %d: want a positive number of calls", at, b.MaxCalls)
		}
		if b.Name == "" {
			if primary >= 0 {
				fail("%s: %s has no name, but %s already is the primary; give it a name, as in -connect %s,NAME:%s",
					at, b.Address, c.Backends[primary].Address, c.Backends[primary].Address, b.Address)
			}
			primary = i
			continue
		}
		if err := profile.CheckBackendName(b.Name); err != nil {
			fail("%s: %w", at, err)
		}
		if j, twice := names[b.Name]; twice {
			fail("%s: the name %q is already used by backends[%d]", at, b.Name, j)
		}
		names[b.Name] = i
	}
	if _, ok := names[c.NewPodsTo]; c.NewPodsTo != "" && !ok {
		fail("newPodsTo: there is no runtime %q%s", c.NewPodsTo, suggest.Nearest(c.NewPodsTo, slices.Sorted(maps.Keys(names))))
	}
	handlers := map[string]int{}
	for i, b := range c.Backends {
		if b.Maps[handlersMap] != nil {
			fail("backends[%d].maps.%s: use the setting handlers instead", i, handlersMap)
		}
		for front := range b.Handlers {
			if front == "" {
				fail("backends[%d].handlers: the empty handler is the default everywhere and cannot be mapped", i)
			}
			if j, twice := handlers[front]; twice {
				fail("backends[%d].handlers: %q is already mapped by backends[%d]", i, front, j)
			}
			handlers[front] = i
		}
	}
	if !isHTTP(c.StreamURL) {
		fail("streamUrl: %q: want http://HOST:PORT/, the address of the runtime's streaming server", c.StreamURL)
	}
	if c.StreamPort < 0 || c.StreamPort > 65535 {
		fail("streamPort: %d: want a port from 1 to 65535", c.StreamPort)
	}
	c.IDs, c.DataPath = cmp.Or(c.IDs, PrefixIDs), cmp.Or(c.DataPath, DefaultDataPath)
	if c.IDs != PrefixIDs && c.IDs != NativeIDs {
		fail("ids: %q: want %q or %q", c.IDs, PrefixIDs, NativeIDs)
	}
	if c.DataPath != OwnPath && c.DataPath != GRPCPath {
		fail("dataPath: %q: want %q or %q", c.DataPath, OwnPath, GRPCPath)
	}
	if c.ListBudget < 0 || c.ListBudget > time.Minute {
		fail("listBudget: %s: want a time up to 1m; kubelet reports the node as not ready after 3 minutes without lists", c.ListBudget)
	}
	if c.GoneAfter < 0 || c.GoneAfter > 2*time.Minute {
		fail("goneAfter: %s: want a time up to 2m, which is how long kubelet waits for an answer", c.GoneAfter)
	}
	if c.EventInterval < 0 {
		fail("eventInterval: %s: want a time such as 1s", c.EventInterval)
	}
	c.ListBudget, c.GoneAfter = cmp.Or(c.ListBudget, backend.DefaultBudget), cmp.Or(c.GoneAfter, backend.DefaultSilence)
	c.EventInterval = cmp.Or(c.EventInterval, time.Second)
	if c.Hooks == "" && c.Profile != "" {
		c.Hooks = "none" // plugins are about pods and containers
	}
	for _, f := range []struct {
		key, standard string
		folder        *string
	}{{"stateDir", DefaultStateDir, &c.StateDir}, {"hooks", DefaultHooks, &c.Hooks}} {
		switch *f.folder = cmp.Or(*f.folder, f.standard); {
		case *f.folder == "none":
			*f.folder = ""
		case !filepath.IsAbs(*f.folder):
			fail("%s: %q: want an absolute path, or none", f.key, *f.folder)
		}
	}
	c.HookSkipLabel = cmp.Or(c.HookSkipLabel, defaultHookSkipLabel)
	if key, _, ok := strings.Cut(c.HookSkipLabel, "="); !ok || key == "" {
		fail("hookSkipLabel: %q: want KEY=VALUE", c.HookSkipLabel)
	}
	if c.MaxMessageBytes < 0 {
		fail("maxMessageBytes: %d: want a positive number of bytes", c.MaxMessageBytes)
	}
	c.MaxMessageBytes = cmp.Or(c.MaxMessageBytes, transport.DefaultMaxMessage)
	c.checkCapture(fail)
	c.checkExport(fail)
	if err := c.mistakes(errs); err != nil {
		return err
	}
	if primary > 0 {
		b := c.Backends[primary]
		copy(c.Backends[1:primary+1], c.Backends[:primary])
		c.Backends[0] = b
	}
	return nil
}

// isHTTP reports whether s is the URL of a host, or empty.
func isHTTP(s string) bool {
	u, err := url.Parse(s)
	return s == "" || err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https")
}

// OrNone is s, or the word none for nothing.
func OrNone(s string) string { return cmp.Or(s, "none") }

func (c *Config) checkCapture(fail func(format string, args ...any)) {
	c.FlightRecorder = cmp.Or(c.FlightRecorder, DefaultRecorder)
	if c.FlightRecorder < minRecorder && c.FlightRecorder != -1 {
		fail("flightRecorder: %d: want at least %d bytes, or -1 for none", c.FlightRecorder, minRecorder)
	}
	f := &c.Capture
	if f.Path != "" && c.FlightRecorder == -1 {
		fail("capture: nothing is recorded, because flightRecorder is -1; leave flightRecorder out")
	}
	switch {
	case f.MaxBytes == 0:
		f.MaxBytes = 64 << 20
	case f.MaxBytes == -1:
		f.MaxBytes = 0
	case f.MaxBytes < minRecorder:
		fail("capture.maxBytes: %d: want at least %d, or -1 for no limit", f.MaxBytes, minRecorder)
	}
	switch {
	case f.MaxFiles == 0:
		f.MaxFiles = 5
	case f.MaxFiles < 0 || f.MaxFiles > 1000:
		fail("capture.maxFiles: %d: want a number from 1 to 1000", f.MaxFiles)
	}
}

// AdminBeside returns the default path of the admin socket for a main socket at listen.
func AdminBeside(listen string) string {
	ending := filepath.Ext(listen)
	return strings.TrimSuffix(listen, ending) + ".admin" + ending
}

// AllAddresses returns the addresses of the interchangeable servers of the backend, Address first.
func (b *Backend) AllAddresses() []string { return append([]string{b.Address}, b.Addresses...) }

// check calls fail for each mistake in the addresses of the backend.
func (b *Backend) check(at string, fail func(string, ...any)) {
	for _, addr := range b.AllAddresses() {
		network, err := transport.Network(addr)
		switch {
		case err != nil:
			fail("%s: %w", at, err)
		case network == transport.Unix:
			if err := CheckSocketPath(addr); err != nil {
				fail("%s: %w", at, err)
			}
		case network == transport.TCP && b.TLS == nil:
			fail("%s: %s is on a network and needs tls: {ca: FILE}", at, addr)
		}
	}
	if len(b.Addresses) > 0 && strings.HasPrefix(b.Address, transport.DNSScheme) {
		fail("%s.addresses: %s already stands for all servers of that name; leave addresses out", at, b.Address)
	}
	if err := transport.CheckBalance(b.Balance); err != nil {
		fail("%s.balance: %w", at, err)
	}
	b.TLS.check(at, false, fail)
}

// CheckSocketPath returns an error if path cannot be the path of a unix socket.
func CheckSocketPath(path string) error {
	switch {
	case path == "":
		return errors.New("has no path; want the absolute path of a socket")
	case !filepath.IsAbs(path):
		return fmt.Errorf("invalid path %q: want an absolute one", path)
	case len(path) > maxSocketPath:
		return fmt.Errorf("%q has %d bytes; the path of a unix socket can have at most %d", path, len(path), maxSocketPath)
	}
	return nil
}

// Warnings returns warnings about settings that work, but have unexpected consequences.
func (c *Config) Warnings() []string {
	var all []string
	if c.DataPath == GRPCPath {
		all = append(all, "dataPath: grpc: memory for messages is counted when a message has come, not before; a client may stall in the middle of a message for as long as it likes; calls need about twice the CPU time: see docs/security.md")
	}
	_, spans := c.Collector()
	all = append(all, spans...)
	all = append(all, c.Export.warnings()...)
	if c.Profile != "" {
		return all // kubelet has nothing to do with it
	}
	for _, b := range c.Backends[1:] {
		all = append(all, NameWarnings(b.Name)...)
		if c.IDs != NativeIDs {
			all = append(all, IDWarnings(b.Name)...)
		}
	}
	return all
}
