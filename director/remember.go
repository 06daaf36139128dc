package director

import (
	"context"
	"time"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/backend"
)

// A MemoryConfig configures the cache of a backend. The zero value is useful.
type MemoryConfig struct {
	// File is the absolute path of a file that keeps the cache over a crash of this process.
	// A file from before the last boot of the machine does not count. Empty means that the
	// cache ends with the process.
	File string

	// Budget is how long the backend may take to answer a list or a status. After that, the cache
	// answers the client, and the call to the backend goes on to bring the cache up to date.
	// Zero means two seconds.
	Budget time.Duration

	// GoneAfter is how long a backend may send no answer at all before it counts as gone. Then
	// calls to it fail with Unavailable, except those that the cache answers. Zero means ten
	// seconds.
	GoneAfter time.Duration

	// Policy says what the lists have of a server that is slow or gone. Empty means LastKnown.
	Policy Policy

	// Primary says that the backend is the primary: a list without it fails.
	Primary bool

	// Absent reports whether no process listens at the address of the backend now, as
	// Absent of a dial.Conn does. Lists leave out such a backend if it has not answered since the machine
	// was booted. Nil means that nobody knows.
	Absent func(ctx context.Context) bool
}

// A Memory is a cache of what a backend said last. [Remember] makes it, and a [Backend] holds it.
type Memory = backend.Backend

// A Policy says what the lists have of a server that is slow or gone.
type Policy = backend.Policy

// The policies.
const (
	LastKnown Policy = backend.LastKnown // the server's items as they were; its status calls are answered, too
	Fail      Policy = backend.Fail      // nothing: lists of all servers fail
	Skip      Policy = backend.Skip      // nothing: clients take the server's items for gone
)

// Remember returns b with a cache. The cache holds the lists and replies of the server that the
// profile names under known, and answers them while the server is slow or gone. Remember uses the
// Profile, Schema and Panicked of cfg, and b.Conn must have been made with the same Profile and Schema.
//
// The caller must call run in a goroutine as long as the backend is in use, and keep the connection
// up, as Run of a dial.Conn does. run keeps the cache up to date when clients do not ask, notices that the
// server is gone or back, and writes the file. It returns when ctx has ended, with the error of the
// last write.
func Remember(b Backend, cfg Config, m MemoryConfig) (remembered Backend, run func(ctx context.Context) error, err error) {
	p := cfg.Profile
	pkg := p.Versions[0].Package
	alive := ""
	if p.Probe != "" {
		alive = "/" + pkg + "." + p.Probe
	}
	known := backend.Open(b.Name, backend.File{Path: m.File})
	err = known.Use(backend.Config{
		Name: b.String(), Next: codec.CallerOf(b.Conn),
		Schema: cfg.Schema, Package: pkg, Spec: p.Known,
		Primary:  m.Primary,
		Absent:   m.Absent,
		Budget:   m.Budget,
		Silence:  m.GoneAfter,
		Policy:   m.Policy,
		Alive:    alive,
		Panicked: cfg.Panicked,
	})
	if err != nil {
		return Backend{}, nil, err
	}
	b.Conn, b.Known = known, known
	return b, known.Run, nil
}
