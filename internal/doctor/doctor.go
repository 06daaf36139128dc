// Package doctor looks at a node and says what would not work with criproxy between
// kubelet and its runtimes, each time with the way to mend it. It changes nothing.
//
// What the runtimes say of themselves is for the caller to ask; here are the files,
// processes and sockets.
package doctor

import (
	"cmp"
	"path/filepath"
	"slices"

	"github.com/criproxy/criproxy/internal/peercred"
)

// A Level is how bad a finding is.
type Level string

// The levels.
const (
	Error   Level = "error"   // something does not work
	Warning Level = "warning" // it works, with consequences
	Note    Level = "note"    // good to know
)

// A Finding is one thing that was found. Its JSON is stable.
type Finding struct {
	Level Level  `json:"level"`
	About string `json:"about"` // what it was found at: "kubelet", "sockets", ...
	Text  string `json:"text"`
	Cure  string `json:"cure"` // how to mend it; for a note, what to know
}

// Node is what to look at. Only Listen is needed.
type Node struct {
	// Root is where the file system of the node begins. Empty means /.
	Root string

	Listen   string // the socket that kubelet is to speak to
	Backends []Backend

	// Separator stands between the prefix and the id of a backend. Empty means that ids have no
	// prefix.
	Separator string

	// Version returns the version of the kubelet that is the program at exe, such as
	// "v1.34.1". Nil means that it is not asked.
	Version func(exe string) (string, error)

	// Connected returns the inodes of the sockets that are connected to the socket at
	// path. Nil means [Connected], which asks the kernel this process runs on.
	Connected func(path string) ([]uint32, error)

	// Served returns the process that serves the socket at path. Nil is [peercred.Serving].
	Served func(path string) (peercred.Process, error)
}

// Backend is one of the runtimes.
type Backend struct {
	Name    string // for people; "primary" if it has none
	Prefix  string // before the separator in its ids, empty for those of the primary
	Address string
	Driver  string // of cgroups: "systemd" or "cgroupfs"; empty if it does not tell
	HTTP    bool   // HTTP/1 is served at its socket beside CRI, as CRI-O does
}

// Examine returns all that is found, the worst first, and the kubelet that was looked at, nil if
// none runs.
func (n *Node) Examine() ([]Finding, *Kubelet) {
	e := &examination{Node: n}
	if e.Connected == nil {
		e.Connected = Connected
	}
	if e.Served == nil {
		e.Served = peercred.Serving
	}
	e.processes = e.readProcesses()
	e.kubelets()
	e.drivers()
	e.sockets()
	e.clients()
	e.logs()
	return Sort(e.found), e.kubelet
}

// Sort puts the worst first, changing all, and returns it.
func Sort(all []Finding) []Finding {
	slices.SortStableFunc(all, func(a, b Finding) int { return cmp.Compare(a.Level.rank(), b.Level.rank()) })
	return all
}

func (l Level) rank() int { return slices.Index([]Level{Error, Warning, Note}, l) }

// examination is one look at a node.
type examination struct {
	*Node
	processes []process
	kubelet   *Kubelet // nil if there is none
	found     []Finding
}

func (e *examination) add(level Level, about, text, cure string) {
	e.found = append(e.found, Finding{level, about, text, cure})
}

// file is where a file of the node can be read.
func (e *examination) file(path string) string { return filepath.Join("/", e.Root, path) }
