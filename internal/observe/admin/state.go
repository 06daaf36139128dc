package admin

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/criproxy/criproxy/internal/backend"
)

// Health says whether a proxy answers calls.
type Health struct {
	Ready       bool            // clients can connect, and the primary is up
	Stopping    bool            // the proxy no longer takes new calls
	Unreachable error           // why no client can connect to the main socket; nil if clients can
	Backends    []BackendHealth // the primary first
}

// BackendHealth is the state of a backend.
type BackendHealth struct {
	Name  string // "primary" if it has none
	State string // "up", "slow", "gone", or "connecting": not yet known
	Err   error  // why it is not up
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

// IsUp reports whether the backend takes calls.
func (b *BackendHealth) IsUp() bool { return TakesCalls(b.State) }

// TakesCalls reports whether a backend in this state takes calls.
func TakesCalls(state string) bool {
	return state == backend.Up.String() || state == backend.Slow.String()
}
