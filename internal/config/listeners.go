package config

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path"
	"strconv"
	"strings"

	"github.com/criproxy/criproxy/internal/address"
)

// Listener is a socket that clients connect to.
type Listener struct {
	// Path is where the socket is. A listener with the path of listen is about that socket. It
	// may also be HOST:PORT, which takes TLS, or vsock:CID:PORT, where CID 4294967295 is any of
	// this machine.
	Path string `yaml:"path"`

	// TLS is how connections are secured. Optional for sockets and vsock.
	TLS *TLS `yaml:"tls"`

	// Owner of the socket's file, as USER, USER:GROUP or :GROUP, names or numbers. A reload
	// changes it; connected clients stay connected. Optional: that of the primary runtime's own
	// socket when the file is made; a file of systemd or of the process before keeps its owner.
	Owner string `yaml:"owner"`

	// Mode of the socket's file, in octal digits such as "0660". A reload changes it; connected
	// clients stay connected. Optional: that of the primary runtime's own socket when the file
	// is made, or "0660" if that does not exist yet; a file of systemd, with its SocketMode=, or
	// of the process before keeps its mode.
	Mode string `yaml:"mode"`

	// Access lists the calls that clients may make: a call that no rule allows is
	// PermissionDenied. Optional: without rules every client that can open the socket may make
	// every call.
	Access []AccessRule `yaml:"access"`

	// MaxCalls is how many calls may be under way at once, streams of events among them. One
	// more is ResourceExhausted. Optional: 4096 at the main socket, 1024 at another one.
	MaxCalls int `yaml:"maxCalls"`

	Main bool // it is the socket of listen
}

const (
	// DefaultMaxCalls is how many calls the main socket takes at once, and a backend gets.
	DefaultMaxCalls = 4096

	// DefaultSideCalls is how many another socket takes: half of what a backend has for
	// these sockets together, so that one alone leaves room for the next.
	DefaultSideCalls = DefaultMaxCalls / 4
)

// AccessRule allows calls.
type AccessRule struct {
	// Methods are patterns such as "List*", for methods of CRI, or with the whole name
	// "/runtime.v1.ImageService/*". "read-only" stands for all methods that only read. A client
	// that may do nothing else does not see what the profile calls secret: verbose information,
	// which has the environments of containers, and the annotation with the last applied
	// configuration, in lists, statuses and events. A method that a rule names without a star
	// shows everything: [read-only, ContainerStatus]. Optional: all methods, also those of other
	// services.
	Methods []string `yaml:"methods" json:"methods,omitempty"`

	// UIDs and GIDs are the clients that the rule is for: processes with one of the user ids, or
	// in one of the groups. Optional: every client that can open the socket.
	UIDs []uint32 `yaml:"uids" json:"uids,omitempty"`
	GIDs []uint32 `yaml:"gids" json:"gids,omitempty"`
}

// DefaultMode is that of containerd's own socket.
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
	taken := map[string]string{}
	if c.Admin != "" {
		taken[c.Admin] = "the admin socket"
	}
	for i, l := range c.Listeners {
		at := fmt.Sprintf("listeners[%d]", i)
		if err := l.checkPath(); err != nil {
			fail("%s: %w", at, err)
		} else if owner := taken[l.Path]; owner != "" {
			fail("%s: %s is %s already", at, l.Path, owner)
		} else {
			taken[l.Path] = at
		}
		for j, b := range c.Backends {
			if b.Address == l.Path && l.Path != "" && l.Path != c.Listen {
				fail("%s: %s is the socket of backends[%d] as well; criproxy would call itself", at, l.Path, j)
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
	network, err := address.Network(l.Path)
	switch {
	case l.Path == "" || err == nil && network == "unix":
		return CheckSocketPath(l.Path)
	case err != nil || strings.HasPrefix(l.Path, "dns:"):
		return fmt.Errorf("%q is neither the absolute path of a socket, nor HOST:PORT, nor vsock:CID:PORT", l.Path)
	case network == "tcp" && l.TLS == nil:
		return fmt.Errorf("%s is over a network, and needs tls: {cert: FILE, key: FILE}", l.Path)
	case l.Owner != "" || l.Mode != "":
		return fmt.Errorf("%s is no file; it has neither owner nor mode", l.Path)
	}
	for _, r := range l.Access {
		if len(r.UIDs)+len(r.GIDs) > 0 {
			return fmt.Errorf("%s does not identify the user of a client; ask for a certificate with tls.ca in place of uids and gids", l.Path)
		}
	}
	return nil
}

// IsFile reports whether the listener is a socket in the file system.
func (l Listener) IsFile() bool {
	network, err := address.Network(l.Path)
	return err == nil && network == "unix"
}

// checkPattern returns what is wrong with a pattern for methods.
func checkPattern(pattern string) error {
	if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
		return fmt.Errorf("%q is no pattern; want one such as List* or /runtime.v1.ImageService/*", pattern)
	}
	if strings.Contains(pattern, "/") && strings.Count(pattern, "/") != 2 || strings.Index(pattern, "/") > 0 {
		return fmt.Errorf("%q matches no method; want one such as List* or /runtime.v1.ImageService/*", pattern)
	}
	return nil
}

// Perm returns the mode of the socket's file, 0 if the mode is that of the primary's socket.
func (l Listener) Perm() (os.FileMode, error) {
	if l.Mode == "" {
		return 0, nil
	}
	m, err := strconv.ParseUint(l.Mode, 8, 32)
	if err != nil || m == 0 || m > 0o777 {
		return 0, fmt.Errorf(`%q is no mode; want octal digits in quotes, such as "0660"`, l.Mode)
	}
	return os.FileMode(m), nil
}

// IDs returns the user and the group that own the socket's file. -1 leaves the owner that it
// has.
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
