package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/criproxy/criproxy/internal/base/host"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/admin"
)

// adminVariable is the environment variable with the path of the admin socket to ask, unless -admin is given.
const adminVariable = "CRIPROXY_ADMIN"

// addAdminFlag adds the flag -admin of the commands that ask a running criproxy.
func addAdminFlag(fs *flag.FlagSet, given *string) {
	fs.StringVar(given, "admin", "", "the `PATH` of the admin socket of the criproxy to ask, or ssh://HOST or kube://NODE (default $"+adminVariable+", else "+config.DefaultAdmin+" if it exists, else the socket of the only criproxy that runs)")
}

// adminSocket returns the socket to ask, if -admin has the value given. It does not check that a process serves it: connecting
// to it gives a better error.
func adminSocket(ctx context.Context, given string) (string, error) {
	if given = cmp.Or(given, os.Getenv(adminVariable)); given != "" {
		return given, nil
	}
	if _, err := os.Stat(config.DefaultAdmin); err == nil {
		return config.DefaultAdmin, nil
	}
	switch found := instances(ctx); len(found) {
	case 0:
		return config.DefaultAdmin, nil
	case 1:
		return found[0].Admin, nil
	default:
		text := fmt.Sprintf("%d criproxy processes run on this machine; choose one with -admin:", len(found))
		for _, one := range found {
			text += "\n" + one.Admin
		}
		return "", errors.New(text)
	}
}

// askOne asks the criproxy at an admin socket for the answer called name.
func askOne[T any](ctx context.Context, socket, name string, within time.Duration) (answer T, err error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	_, err = admin.NewClient(socket).Read(ctx, name, &answer)
	return answer, err
}

// Instance is a criproxy process on this machine. Its JSON is stable.
type Instance struct {
	Node    string `json:"node,omitempty"` // if other nodes were asked
	Admin   string `json:"admin"`
	PID     int    `json:"pid"`
	Version string `json:"version"`

	StaysFor []admin.LongCall `json:"staysFor,omitempty"`
}

// instanceTime bounds how long a process may take to answer that it is a criproxy.
const instanceTime = time.Second

// instances returns the criproxy processes whose admin sockets this user can open. It connects only to private sockets that
// are named like an admin socket, or that a process called criproxy names as its admin socket: a socket for clients, or a
// runtime's, would take the question for a mistake. It asks all at once, because some may hang.
func instances(ctx context.Context) []Instance {
	var sockets []admin.Node
	named := namedAdmins()
	for path := range listeningSockets() {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm()&0o077 != 0 || !named[path] && !strings.Contains(filepath.Base(path), ".admin") {
			continue
		}
		sockets = append(sockets, admin.Node{Address: path})
	}
	versions := make([]admin.Version, len(sockets))
	var found []Instance
	for i, socket := range admin.EachNode(ctx, sockets, instanceTime, nil, func(ctx context.Context, i int) (err error) {
		_, err = admin.NewClient(sockets[i].Address).Read(ctx, "version", &versions[i])
		return err
	}) {
		if v := versions[i]; socket.Err == nil && v.PID != 0 {
			found = append(found, Instance{Admin: socket.Address, PID: v.PID, Version: v.Version, StaysFor: v.StaysFor})
		}
	}
	slices.SortFunc(found, func(a, b Instance) int { return cmp.Compare(a.Admin, b.Admin) })
	return found
}

// namedAdmins returns the paths of the admin sockets that processes called criproxy have on their command lines or in their
// configuration files, as far as this user can see them.
func namedAdmins() map[string]bool {
	named := map[string]bool{}
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, proc := range processes {
		name, args, err := host.Command(proc)
		if err != nil || !strings.HasPrefix(name, "criproxy") {
			continue
		}
		var c config.Config
		c.Admin = host.Flag(args, "admin")
		if file := cmp.Or(host.Flag(args, "config"), config.DefaultConfig); c.Admin == "" {
			if text, err := readRegular(inFolder(filepath.Join(proc, "cwd"), file)); err == nil {
				_ = c.Parse(file, text) // what is wrong in it is not this command's business
			}
		}
		if dir, err := os.Readlink(filepath.Join(proc, "cwd")); err == nil && c.Admin != "" {
			named[inFolder(dir, c.Admin)] = true
		}
	}
	return named
}

// readRegular reads a file of another process. A pipe would keep this command waiting, and take what that process is to read.
func readRegular(path string) ([]byte, error) {
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, fs.ErrInvalid)
	}
	return os.ReadFile(path)
}

// inFolder returns the path that a process in a folder means.
func inFolder(dir, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// listeningSockets returns the paths at which a process accepts connections: see proc(5).
func listeningSockets() map[string]bool {
	file, err := os.Open("/proc/net/unix")
	if err != nil {
		return nil
	}
	defer file.Close() // it was only read
	const accepts = "00010000"
	paths := map[string]bool{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if f := strings.Fields(lines.Text()); len(f) == 8 && f[3] == accepts && filepath.IsAbs(f[7]) {
			paths[f[7]] = true
		}
	}
	return paths
}
