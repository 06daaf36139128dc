package daemon

import (
	"slices"
	"sync"
	"time"

	"github.com/criproxy/criproxy/internal/memory"
	"github.com/criproxy/criproxy/internal/observe/admin"
)

// maxOutages is how many outages of a backend the notes hold.
const maxOutages = 10

// notes hold the version of a backend and its outages, which people want to know while it is gone
// and afterwards. They belong to its name, as its memory does. They are safe for concurrent use.
type notes struct {
	mu   sync.Mutex
	kept noted
}

// noted is the content of notes, in the form that passes to the next process.
type noted struct {
	Runtime string         `json:"runtime,omitempty"`
	API     []string       `json:"api,omitempty"`
	Outages []admin.Outage `json:"outages,omitempty"` // the latest first
}

// is notes the runtime and the API that the backend has told.
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

// became notes that the backend has been in a condition since a time. A slow backend that becomes
// gone, or the reverse, is still in the same outage.
func (n *notes) became(c memory.Condition, since time.Time, why error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := n.kept.Outages
	under := len(all) > 0 && all[0].To.IsZero()
	switch {
	case c == memory.Up && under:
		all[0].To = since
	case c == memory.Up:
	case !under:
		all = slices.Insert(all, 0, admin.Outage{State: c.String(), From: since})
		fallthrough
	default:
		if c == memory.Gone {
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
