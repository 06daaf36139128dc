package daemon

import (
	"slices"
	"sync"
	"time"

	"github.com/criproxy/criproxy/internal/lastknown"
	"github.com/criproxy/criproxy/internal/state"
)

// maxOutages is how many outages of a backend are remembered.
const maxOutages = 10

// notes are what people want to know of a backend while it is away, and afterwards: what it is,
// and when it was away. They belong to its name, as its memory does. They are safe for concurrent
// use.
type notes struct {
	mu   sync.Mutex
	kept noted
}

// noted is what notes consist of, for the next process as well.
type noted struct {
	Runtime string         `json:"runtime,omitempty"`
	API     []string       `json:"api,omitempty"`
	Outages []state.Outage `json:"outages,omitempty"` // the latest first
}

// is notes what the backend says of itself.
func (n *notes) is(runtime string, api []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if runtime != "" {
		n.kept.Runtime = runtime
	}
	if len(api) > 0 {
		n.kept.API = api
	}
}

// became notes that the backend is in a condition since a moment. One outage may be slow first
// and gone then.
func (n *notes) became(c lastknown.Condition, since time.Time, why error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := n.kept.Outages
	under := len(all) > 0 && all[0].To.IsZero()
	switch {
	case c == lastknown.Up && under:
		all[0].To = since
	case c == lastknown.Up:
	case !under:
		all = slices.Insert(all, 0, state.Outage{State: c.String(), From: since})
		fallthrough
	default:
		if c == lastknown.Gone {
			all[0].State = c.String()
		}
		if why != nil {
			all[0].Error = why.Error()
		}
	}
	n.kept.Outages = all[:min(len(all), maxOutages)]
}

// list returns the notes.
func (n *notes) list() noted {
	n.mu.Lock()
	defer n.mu.Unlock()
	kept := n.kept
	kept.Outages = slices.Clone(kept.Outages)
	return kept
}
