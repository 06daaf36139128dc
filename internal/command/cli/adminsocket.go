package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/settings/config"
)

// adminVariable is the environment variable with the path of the admin socket to ask, unless -admin is given.
const adminVariable = "CRIPROXY_ADMIN"

// adminFlag is the flag -admin of the commands that ask a running criproxy.
type adminFlag struct{ given string }

func (a *adminFlag) flags(fs *flag.FlagSet) {
	fs.StringVar(&a.given, "admin", "", "the `PATH` of the admin socket of the criproxy to ask, or ssh://HOST or kube://NODE (default $"+adminVariable+", else "+config.DefaultAdmin+" if it exists, else the socket of the only criproxy that runs)")
}

// path returns the socket to ask. It does not check that a process serves it: connecting to it gives a better error.
func (a *adminFlag) path(ctx context.Context) (string, error) {
	if given := cmp.Or(a.given, os.Getenv(adminVariable)); given != "" {
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

// Instance is a criproxy process on this machine. Its JSON is stable.
type Instance struct {
	Admin   string `json:"admin"`
	PID     int    `json:"pid"`
	Version string `json:"version"`
}

// instanceTime bounds how long a process may take to answer that it is a criproxy.
const instanceTime = time.Second

// instances returns the criproxy processes whose admin sockets this user can open. It connects only to private sockets
// that a process called criproxy has open, or that are named like an admin socket, in case the program has another
// name.
func instances(ctx context.Context) []Instance {
	var found []Instance
	held := heldSockets()
	for path, inode := range listeningSockets() {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm()&0o077 != 0 || !held[inode] && !strings.Contains(filepath.Base(path), ".admin") {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, instanceTime)
		var v admin.Version
		if _, err := admin.NewClient(path).Read(ctx, "version", &v); err == nil && v.PID != 0 {
			found = append(found, Instance{path, v.PID, v.Version})
		}
		cancel()
	}
	slices.SortFunc(found, func(a, b Instance) int { return cmp.Compare(a.Admin, b.Admin) })
	return found
}

// heldSockets returns the inodes of the sockets that processes called criproxy have open, as far as this user can see
// them.
func heldSockets() map[string]bool {
	held := map[string]bool{}
	names, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, file := range names {
		if name, err := os.ReadFile(file); err != nil || !strings.HasPrefix(string(name), "criproxy") {
			continue
		}
		open, _ := filepath.Glob(filepath.Join(filepath.Dir(file), "fd", "*"))
		for _, fd := range open {
			target, _ := os.Readlink(fd) // it may be closed by now
			if inode, ok := strings.CutPrefix(target, "socket:["); ok {
				held[strings.TrimSuffix(inode, "]")] = true
			}
		}
	}
	return held
}

// listeningSockets returns the paths at which a process accepts connections, with the inodes of the sockets: see
// proc(5).
func listeningSockets() map[string]string {
	file, err := os.Open("/proc/net/unix")
	if err != nil {
		return nil
	}
	defer file.Close() // it was only read
	const accepts = "00010000"
	paths := map[string]string{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if f := strings.Fields(lines.Text()); len(f) == 8 && f[3] == accepts && filepath.IsAbs(f[7]) {
			paths[f[7]] = f[6]
		}
	}
	return paths
}
