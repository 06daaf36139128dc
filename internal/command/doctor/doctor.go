package doctor

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/criproxy/criproxy/internal/base/host"
	"github.com/criproxy/criproxy/internal/observe/why"
)

// Found makes a finding. entry is the anchor of its entry in the runbook.
func Found(level why.Level, about, entry, text, cure string) why.Finding {
	return why.Finding{Level: level, About: about, Text: text, Cure: cure, Runbook: "docs/runbook.md#" + entry}
}

// Node is the node to examine. Only Listen is required.
type Node struct {
	// Root is the root of the node's file system. Empty means /.
	Root string

	Listen   string // the socket that kubelet is to speak to
	Backends []Backend

	OtherAPI bool // than CRI: kubelet has nothing to do with it

	// Separator stands between the prefix and the id of a backend. Empty means that ids have no
	// prefix.
	Separator string

	// Version returns the version of the kubelet program at exe, such as "v1.34.1". Nil means that the version stays
	// unknown.
	Version func(exe string) (string, error)

	// Connected returns the inodes of the sockets that are connected to the socket at path. Nil means [Connected],
	// which asks the kernel.
	Connected func(path string) ([]uint32, error)

	// Served returns the process that serves the socket at path. Nil means [host.Serving].
	Served func(path string) (host.Process, error)

	Criproxys Criproxys

	// Circles reports whether calls to the socket at path, which a process serves, may come back to criproxy. Nil means
	// [Criproxys.MayCircle].
	Circles func(p host.Process, path string) bool
}

// Criproxys are the processes that have answered as criproxys at their admin sockets, with the sockets at which each of them
// serves clients.
type Criproxys map[int][]string

// Serves reports whether the process that serves the socket at path does that as a criproxy, whatever its program is called.
// One without an admin socket, or with one that this user cannot open, is known by its name.
func (c Criproxys) Serves(p host.Process, path string) bool {
	if sockets, known := c[int(p.PID)]; known {
		return slices.ContainsFunc(sockets, func(one string) bool { return host.SameSocket(one, path) })
	}
	return named(p.Name)
}

// MayCircle reports whether calls to the socket at path, which p serves, may come back to a criproxy that has it as a backend.
func (c Criproxys) MayCircle(p host.Process, path string) bool {
	return p.Name != DemoProcess && c.Serves(p, path)
}

// DemoProcess is the name of a process that runs the demo: a criproxy, and runtimes.
const DemoProcess = "criproxy-demo"

// named reports whether a program has the name of criproxy, perhaps with a version after it.
func named(program string) bool {
	return program == "criproxy" || strings.HasPrefix(program, "criproxy-")
}

// Backend is one of the runtimes.
type Backend struct {
	Name    string // for people; "primary" if it has none
	Prefix  string // the text before the separator in its ids; empty for the primary
	Address string
	Driver  string // its cgroup driver, "systemd" or "cgroupfs"; empty if it does not report one
	HTTP    bool   // its socket serves HTTP/1 as well as CRI, as CRI-O's does

	// Reported says that another finding has the process that serves its socket.
	Reported bool
}

// Examine returns the findings, the worst first, and the kubelet of the node, nil if none runs.
func (n *Node) Examine() ([]why.Finding, *Kubelet) {
	e := &examination{Node: n}
	if e.Connected == nil {
		e.Connected = Connected
	}
	if e.Served == nil {
		e.Served = host.Serving
	}
	if e.Circles == nil {
		e.Circles = e.Criproxys.MayCircle
	}
	e.processes = e.readProcesses()
	if !e.OtherAPI {
		e.kubelets()
		e.drivers()
	}
	e.sockets()
	e.clients()
	if !e.OtherAPI {
		e.crictl()
		e.logs()
	}
	return why.Sort(e.found), e.kubelet
}

// examination is the state of one Examine.
type examination struct {
	*Node
	processes []process
	kubelet   *Kubelet // nil if there is none
	found     []why.Finding
}

func (e *examination) add(level why.Level, about, entry, text, cure string) {
	e.found = append(e.found, Found(level, about, entry, text, cure))
}

// file returns the path at which this process can read the node's file at path.
func (e *examination) file(path string) string { return filepath.Join("/", e.Root, path) }
