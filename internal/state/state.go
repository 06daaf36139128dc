// Package state has the types that say how a proxy is doing: State is what it sees without
// a call, Report has the answers of its backends as well. Metrics, health, the admin socket and
// the commands share them.
package state

import (
	"time"

	"github.com/criproxy/criproxy/internal/drift"
	"github.com/criproxy/criproxy/internal/hook"
	"github.com/criproxy/criproxy/internal/lastknown"
)

// State is how a proxy is doing, as far as the proxy knows without asking its backends.
type State struct {
	Health
	Listeners []ListenerHealth // the main one first
	Memory    Memory
	Panics    uint64 // that were contained
	Config    Config
	Capture   *Capture // nil if nothing is recorded
	Drift     []drift.Finding
	Plugins   *hook.State // nil if plugins are turned off
}

// Health is whether a proxy answers calls.
type Health struct {
	Ready       bool            // clients can connect, and the primary is up
	Stopping    bool            // new calls are no longer taken
	Unreachable error           // why no client can connect to the main socket; nil if clients can
	Backends    []BackendHealth // the primary first
}

// BackendHealth is how a backend is doing.
type BackendHealth struct {
	Name       string            // "primary" if it has none
	State      string            // "up", "slow", "gone", or "connecting": not yet known
	Err        error             // why it is not up
	Age        *time.Duration    // of what lists show of it; nil if nothing is remembered of it
	Remembered map[string]uint64 // :: method → answers from memory
	Items      map[string]int    // :: kind of name, such as "sandbox" → how many it has, as far as known
}

// ListenerHealth is how a socket is doing.
type ListenerHealth struct {
	Path    string
	Lost    int64 // how often its file was gone
	Err     error // why no client can connect; nil if clients can
	Refused int64 // calls, by the access list
}

// Memory is that of the messages of calls under way.
type Memory struct {
	Taken, Total int64 // bytes: what they take, or have been promised, and may take
	Refused      int64 // calls, because their socket had too many, or there was no memory for them
}

// Capture is how the flight recorder and the file of -capture are doing.
type Capture struct {
	Recorded, Missed uint64 // events
	File             bool   // calls are written to a file
	Failing          bool   // it cannot be written now
	Failures         int64  // how often it could not be written any more
}

// IsUp reports whether the backend takes calls.
func (b *BackendHealth) IsUp() bool { return TakesCalls(b.State) }

// TakesCalls reports whether a backend in this state takes calls.
func TakesCalls(state string) bool {
	return state == lastknown.Up.String() || state == lastknown.Slow.String()
}
