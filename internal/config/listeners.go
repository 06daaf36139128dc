package config

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/criproxy/criproxy/internal/base/host"
	"github.com/criproxy/criproxy/internal/transport"
)

// Listener is a socket that clients connect to.
type Listener struct {
	// Path is the path of the socket. If it is the path of listen, the item is about the main socket. It may also be
	// HOST:PORT, which needs TLS, or vsock:CID:PORT, where CID 4294967295 stands for any CID of this machine.
	Path string `yaml:"path"`

	// TLS secures the connections. Optional for sockets and vsock.
	TLS *TLS `yaml:"tls"`

	// Owner is the owner of the socket's file, as USER, USER:GROUP or :GROUP, with names or numbers. A reload changes
	// it. Default: the owner of the primary runtime's own socket. A file that systemd or an earlier process made keeps
	// its owner.
	Owner string `yaml:"owner"`

	// Mode is the mode of the socket's file, in octal digits such as "0660". A reload changes it. Default: the mode of
	// the primary runtime's own socket, or "0660" if that does not exist yet. A file that systemd, with its
	// SocketMode=, or an earlier process made keeps its mode.
	Mode string `yaml:"mode"`

	// Access lists the calls that clients may make: a call that no rule allows fails with PermissionDenied. Default:
	// every client that can open the socket may make every call.
	Access []AccessRule `yaml:"access"`

	// MaxCalls is how many calls, including streams of events, may be under way on this socket at once. Further calls
	// fail with ResourceExhausted. Default: 4096 on the main socket, 1024 on any other.
	MaxCalls int `yaml:"maxCalls"`

	Main bool // it is the socket of listen
}

const (
	// DefaultMaxCalls is how many calls may be under way on the main socket, and to a backend.
	DefaultMaxCalls = 4096

	// DefaultSideCalls is how many calls may be under way on any other socket: half of what a backend accepts from all
	// of these sockets together, so that one leaves room for another.
	DefaultSideCalls = DefaultMaxCalls / 4
)

// AccessRule allows calls.
type AccessRule struct {
	// Methods are patterns for methods of CRI, such as "List*", or for full names, such as
	// "/runtime.v1.ImageService/*". "read-only" stands for all methods that only read. A client with only this right
	// does not see what the profile calls secret: verbose information and the annotation with the last applied
	// configuration. A method that a rule names without a star shows everything: [read-only, ContainerStatus].
	// Default: all methods, including those of other services.
	Methods []string `yaml:"methods" json:"methods,omitempty"`

	// UIDs and GIDs say which clients the rule is for: processes with one of the user ids, or in one of the groups.
	// Default: every client that can open the socket.
	UIDs []uint32 `yaml:"uids" json:"uids,omitempty"`
	GIDs []uint32 `yaml:"gids" json:"gids,omitempty"`
}

// DefaultMode is the mode of containerd's own socket.
const DefaultMode = 0o660

// Sockets are all sockets that clients connect to, the main one first.
func (c *Config) Sockets() []Listener {
	all := []Listener{{Path: c.Listen}}
	for _, l := range c.Listeners {
		if l.Path == c.Listen {
			all[0] = l
		} else {
			l.MaxCalls = cmp.Or(l.MaxCalls, DefaultSideCalls)
			all = append(all, l)
		}
	}
	all[0].Main = true
	all[0].MaxCalls = cmp.Or(all[0].MaxCalls, DefaultMaxCalls)
	return all
}

// checkListeners calls fail for each mistake in the listeners.
func (c *Config) checkListeners(fail func(string, ...any)) {
	taken := [][2]string{} // path, owner
	if c.Admin != "" {
		taken = append(taken, [2]string{c.Admin, "the admin socket"})
	}
	for i, l := range c.Listeners {
		at := fmt.Sprintf("listeners[%d]", i)
		if err := l.checkPath(); err != nil {
			fail("%s: %w", at, err)
		} else if j := slices.IndexFunc(taken, func(of [2]string) bool { return host.SameSocket(of[0], l.Path) }); j >= 0 {
			fail("%s: %s is %s already", at, l.Path, taken[j][1])
		} else if l.Path != c.Listen && host.SameSocket(l.Path, c.Listen) {
			fail("%s: %s is the socket of listen; write its path as there, %s", at, l.Path, c.Listen)
		} else {
			taken = append(taken, [2]string{l.Path, at})
		}
		for j, b := range c.Backends {
			for _, address := range b.AllAddresses() {
				if l.Path != "" && host.SameSocket(address, l.Path) && !host.SameSocket(l.Path, c.Listen) {
					fail("%s: %s is the socket of backends[%d] as well; criproxy would call itself", at, l.Path, j)
				}
			}
		}
		l.TLS.check(at, true, fail)
		if _, _, err := l.IDs(); err != nil {
			fail("%s.owner: %w", at, err)
		}
		if _, err := l.Perm(); err != nil {
			fail("%s.mode: %w", at, err)
		}
		if l.MaxCalls < 0 {
			fail("%s.maxCalls: %d: want a positive number of calls", at, l.MaxCalls)
		}
		for j, r := range l.Access {
			if len(r.Methods)+len(r.UIDs)+len(r.GIDs) == 0 {
				fail("%s.access[%d]: is empty, and would allow every call to every client; leave access out if that is intended", at, j)
			}
			for k, pattern := range r.Methods {
				if err := checkPattern(pattern); err != nil {
					fail("%s.access[%d].methods[%d]: %w", at, j, k, err)
				}
			}
		}
	}
}

// checkPath returns what is wrong with the path of the listener, and with its settings that
// depend on the kind of path.
func (l Listener) checkPath() error {
	network, err := transport.Network(l.Path)
	switch {
	case l.Path == "" || err == nil && network == transport.Unix:
		return CheckSocketPath(l.Path)
	case err != nil || strings.HasPrefix(l.Path, transport.DNSScheme):
		return fmt.Errorf("%q: want the absolute path of a socket, HOST:PORT, or vsock:CID:PORT", l.Path)
	case network == transport.TCP && l.TLS == nil:
		return fmt.Errorf("%s is on a network and needs tls: {cert: FILE, key: FILE}", l.Path)
	case l.Owner != "" || l.Mode != "":
		return fmt.Errorf("%s is not a file, so it cannot have an owner or mode; leave them out", l.Path)
	}
	for _, r := range l.Access {
		if len(r.UIDs)+len(r.GIDs) > 0 {
			return fmt.Errorf("%s does not show the user of a client, which uids and gids need; leave them out, and require certificates with tls.ca", l.Path)
		}
	}
	return nil
}

// IsFile reports whether the listener is a socket in the file system.
func (l Listener) IsFile() bool {
	network, err := transport.Network(l.Path)
	return err == nil && network == transport.Unix
}

// checkPattern returns what is wrong with a pattern for methods.
func checkPattern(pattern string) error {
	if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
		return fmt.Errorf("invalid pattern %q: want one such as List* or /runtime.v1.ImageService/*", pattern)
	}
	if strings.Contains(pattern, "/") && strings.Count(pattern, "/") != 2 || strings.Index(pattern, "/") > 0 {
		return fmt.Errorf("%q matches no method; want one such as List* or /runtime.v1.ImageService/*", pattern)
	}
	return nil
}

// Perm returns the configured mode of the socket's file. Zero means the mode of the primary's socket.
func (l Listener) Perm() (os.FileMode, error) {
	if l.Mode == "" {
		return 0, nil
	}
	m, err := strconv.ParseUint(l.Mode, 8, 32)
	if err != nil || m == 0 || m > 0o777 {
		return 0, fmt.Errorf(`invalid mode %q: want octal digits in quotes, such as "0660"`, l.Mode)
	}
	return os.FileMode(m), nil
}

// IDs returns the configured user and group of the socket's file. -1 means that none is configured.
func (l Listener) IDs() (uid, gid int, err error) {
	name, group, _ := strings.Cut(l.Owner, ":")
	uid, gid = -1, -1
	if name != "" {
		if uid, err = strconv.Atoi(name); err != nil {
			u, lookup := user.Lookup(name)
			if lookup != nil {
				return -1, -1, fmt.Errorf("%q: there is no user %q on this node", l.Owner, name)
			}
			uid, _ = strconv.Atoi(u.Uid) // always a number on Linux
		}
	}
	if group != "" {
		if gid, err = strconv.Atoi(group); err != nil {
			g, lookup := user.LookupGroup(group)
			if lookup != nil {
				return -1, -1, fmt.Errorf("%q: there is no group %q on this node", l.Owner, group)
			}
			gid, _ = strconv.Atoi(g.Gid) // always a number on Linux
		}
	}
	if uid < -1 || gid < -1 {
		return -1, -1, errors.New("an id is negative; want USER, USER:GROUP or :GROUP")
	}
	return uid, gid, nil
}
