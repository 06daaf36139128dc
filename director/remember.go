package director

import (
	"context"
	"time"

	"github.com/criproxy/criproxy/internal/lastknown"
)

// A MemoryConfig says when memory answers for a backend. The zero value is useful.
type MemoryConfig struct {
	// File keeps the memory over a crash of this process: an absolute path. What was
	// remembered before the machine was booted is forgotten. Empty means that the memory
	// ends with the process.
	File string

	// Budget is how long a list or a status may take before memory answers in its place.
	// The question goes on, and its answer is remembered. Zero means two seconds.
	Budget time.Duration

	// GoneAfter is how long a backend may answer nothing at all before it counts as gone.
	// Calls to it fail with Unavailable then, but for what memory answers. Zero means ten
	// seconds.
	GoneAfter time.Duration
}

// Remember returns a [Backend] for conn that remembers what its server says of the lists and
// replies that the profile has under known, and answers them for a server that is slow or
// gone. The conn needs a Profile and a Schema in its [ConnConfig]. cfg gives the backend its
// Panicked; the caller adds Trusted and Maps.
//
// The caller runs run, beside [Conn.Run], for as long as the backend is in use: it asks for
// what no client asks for, notices that the server is gone or back, and writes the file. It
// returns the error of the last write when ctx has ended.
func Remember(conn *Conn, cfg Config, m MemoryConfig) (b Backend, run func(ctx context.Context) error, err error) {
	p := cfg.Profile
	pkg := p.Versions[0].Package
	bridge, err := lastknown.Bridge(conn, p.Known.Lists, cfg.Schema, pkg)
	if err != nil {
		return Backend{}, nil, err
	}
	alive := ""
	if p.Probe != "" {
		alive = "/" + pkg + "." + p.Probe
	}
	known, err := lastknown.New(lastknown.Config{
		Name: Backend{Name: conn.name}.String(), Conn: bridge,
		Schema: cfg.Schema, Package: pkg, Spec: p.Known,
		Memory:   lastknown.Open(conn.name, lastknown.File{Path: m.File}),
		Primary:  conn.primary,
		Absent:   conn.Absent,
		Budget:   m.Budget,
		Silence:  m.GoneAfter,
		Alive:    alive,
		Panicked: cfg.Panicked,
	})
	if err != nil {
		return Backend{}, nil, err
	}
	return Backend{Name: conn.name, Conn: known, Known: known}, known.Run, nil
}
