package main

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"

	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/strict"
)

// DefaultListen is the socket that kubelet connects to.
const DefaultListen = "/run/criproxy.sock"

// maxSocketPath is the longest path that a unix socket can have, unix(7).
const maxSocketPath = 107

// Config is all that can be configured. The file and the command line set the
// same fields; the command line goes first.
type Config struct {
	// Listen is the path of the socket that kubelet, crictl and other clients
	// connect to. Optional: /run/criproxy.sock.
	Listen string `yaml:"listen"`

	// Backends are the runtimes. The one without a name, or if all have one the
	// first, is the primary: it gets all that nothing directs elsewhere.
	Backends []BackendConfig `yaml:"backends"`

	// StreamURL completes the URLs of exec, attach and port-forward that a
	// runtime returns without a host. URLs with a host pass as they are.
	// Optional: http://ADDRESS:PORT with the address of this node and StreamPort.
	StreamURL string `yaml:"streamUrl"`

	// StreamPort is the port for StreamURL, where that is not set. Optional: 11250.
	StreamPort int `yaml:"streamPort"`

	// MaxMessageBytes is the largest message, either way. Optional: 16 MiB, which
	// is what kubelet takes at most.
	MaxMessageBytes int `yaml:"maxMessageBytes"`
}

// BackendConfig is one of the runtimes.
type BackendConfig struct {
	// Name stands before the ids and images of this runtime: NAME__ID and
	// NAME/IMAGE. Pods whose annotation kubernetes.io/target-runtime is NAME go to
	// it. It should have a dot, so that kubelet takes it for a registry of its
	// own, and no dash. Empty for the primary.
	Name string `yaml:"name"`

	// Address is the path of its socket.
	Address string `yaml:"address"`

	// Handlers are the RuntimeClass handlers whose pods go to this runtime, each
	// with the name that the handler has there; "" is its default. Optional.
	Handlers map[string]string `yaml:"handlers"`
}

func (c *Config) parse(data []byte) error { return strict.Unmarshal(data, c) }

// check completes c with the defaults and puts the primary first. Its error
// names everything that is wrong.
func (c *Config) check() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Listen == "" {
		c.Listen = DefaultListen
	}
	if err := checkSocketPath(c.Listen); err != nil {
		fail("listen: %w", err)
	}
	if len(c.Backends) == 0 {
		fail("no runtime to connect to: use -connect /run/containerd/containerd.sock, or backends in a -config file")
	}
	primary := -1
	addresses, names := map[string]int{}, map[string]int{}
	for i, b := range c.Backends {
		at := fmt.Sprintf("backends[%d]", i)
		if err := checkSocketPath(b.Address); err != nil {
			fail("%s: %w", at, err)
		}
		if b.Address == c.Listen {
			fail("%s: %s is the socket to listen on as well; criproxy would call itself", at, b.Address)
		}
		if j, twice := addresses[b.Address]; twice && b.Address != "" {
			fail("%s: %s is backends[%d] already; its pods would be there twice", at, b.Address, j)
		}
		addresses[b.Address] = i
		if b.Name == "" {
			if primary >= 0 {
				fail("%s: %s has no name, but %s is the primary already; give it one, as in -connect %s,NAME:%s",
					at, b.Address, c.Backends[primary].Address, c.Backends[primary].Address, b.Address)
			}
			primary = i
			continue
		}
		if err := director.CheckName(b.Name); err != nil {
			fail("%s: %w", at, err)
		}
		if j, twice := names[b.Name]; twice {
			fail("%s: the name %q is already used by backends[%d]", at, b.Name, j)
		}
		names[b.Name] = i
	}
	handlers := map[string]int{}
	for i, b := range c.Backends {
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
	if u, err := url.Parse(c.StreamURL); c.StreamURL != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		fail("streamUrl: %q: want http://HOST:PORT/, the address of the runtime's streaming server", c.StreamURL)
	}
	if c.StreamPort < 0 || c.StreamPort > 65535 {
		fail("streamPort: %d: want a port from 1 to 65535", c.StreamPort)
	}
	if c.MaxMessageBytes < 0 {
		fail("maxMessageBytes: %d: want a positive number of bytes", c.MaxMessageBytes)
	}
	if c.MaxMessageBytes == 0 {
		c.MaxMessageBytes = director.DefaultMaxMessage
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if primary > 0 {
		b := c.Backends[primary]
		copy(c.Backends[1:primary+1], c.Backends[:primary])
		c.Backends[0] = b
	}
	return nil
}

func checkSocketPath(path string) error {
	switch {
	case path == "":
		return errors.New("has no path; want the absolute path of a socket")
	case !filepath.IsAbs(path):
		return fmt.Errorf("%q is no absolute path", path)
	case len(path) > maxSocketPath:
		return fmt.Errorf("%q has %d bytes; the path of a unix socket can have at most %d", path, len(path), maxSocketPath)
	}
	return nil
}

// options are the parts of c that are CRI's.
func (c *Config) options() criadapter.Options {
	o := criadapter.Options{StreamURL: c.StreamURL}
	if o.StreamURL == "" && c.StreamPort != 0 {
		o.StreamURL = "http://" + net.JoinHostPort(criadapter.NodeAddress(), fmt.Sprint(c.StreamPort))
	}
	return o
}

// warnings are settings that work, with consequences that people should know.
func (c *Config) warnings() []string {
	var all []string
	for _, b := range c.Backends[1:] {
		all = append(all, nameWarnings(b.Name)...)
	}
	return all
}
