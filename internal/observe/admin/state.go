// This file has the types that describe the state of a proxy. A [State] is what the proxy knows
// without a call; a [Report] also has answers of its backends. Metrics, health, the admin socket
// and the commands share them.

package admin

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/drift"
	"github.com/criproxy/criproxy/internal/plugins"
)

// State is the state of a proxy that it knows without asking its backends.
type State struct {
	Health
	Listeners []ListenerHealth // the main one first
	Memory    Memory
	Panics    uint64 // that did not end the process
	Config    Config
	Capture   *Capture // nil if nothing is recorded
	Export    *Export  // nil if nothing is exported
	Drift     []drift.Finding
	Plugins   *plugins.State // nil if plugins are turned off
	StaysFor  []LongCall     // calls that keep what a reload or a handover has replaced
}

// Health says whether a proxy answers calls.
type Health struct {
	Ready       bool            // clients can connect, and the primary is up
	Stopping    bool            // the proxy no longer takes new calls
	Unreachable error           // why no client can connect to the main socket; nil if clients can
	Backends    []BackendHealth // the primary first
}

// BackendHealth is the state of a backend.
type BackendHealth struct {
	Name       string            // "primary" if it has none
	State      string            // "up", "slow", "gone", or "connecting": not yet known
	Since      time.Time         // since when it is so
	Err        error             // why it is not up
	Age        *time.Duration    // of its items in lists; nil for a backend without a cache
	Remembered map[string]uint64 // :: method → answers from the cache
	Items      map[string]int    // :: kind of name, such as "sandbox" → number of known items
}

// ListenerHealth is the state of a socket.
type ListenerHealth struct {
	Path    string
	Lost    int64 // how often its file was found to be gone
	Err     error // why no client can connect; nil if clients can
	Refused int64 // calls, by the access list

	Connections Connections
}

// Connections are the connections of a socket. Its JSON is stable.
type Connections struct {
	Now     int      `json:"now"`
	Most    int      `json:"most"`              // its share of the file descriptors; above it, idle ones end
	Ended   int64    `json:"ended"`             // that ended or were refused because of that, since this process began
	Clients []string `json:"clients,omitempty"` // which hold the most
}

// TooMany says that the socket at path has had more connections than its share. It is empty if it has not.
func (c *Connections) TooMany(path string) string {
	if c.Ended == 0 {
		return ""
	}
	return fmt.Sprintf("%s has had more connections than its share of file descriptors, %d: %d ended or were refused; now it has %d: %s", path, c.Most, c.Ended, c.Now, cmp.Or(strings.Join(c.Clients, "; "), "-"))
}

// Memory describes the memory for messages of calls under way.
type Memory struct {
	Taken, Total int64 // bytes that messages take or have reserved, and may take at most
	Refused      int64 // calls that were refused because their socket had too many, or for lack of memory
}

// Capture is the state of the flight recorder and of the file of -capture.
type Capture struct {
	Recorded, Missed uint64 // events
	File             bool   // calls are written to a file
	Failing          bool   // the file cannot be written now
	Failures         int64  // how often writing to the file began to fail
}

// IsUp reports whether the backend takes calls.
func (b *BackendHealth) IsUp() bool { return TakesCalls(b.State) }

// TakesCalls reports whether a backend in this state takes calls.
func TakesCalls(state string) bool {
	return state == backend.Up.String() || state == backend.Slow.String()
}
