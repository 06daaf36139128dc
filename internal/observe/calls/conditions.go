package calls

import (
	"slices"
	"time"

	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// Conditions say whether a recording has the conditions of its runtimes. If it lacks them, outages are inferred from calls.
// The changes in the recording count, not what its header promises: somebody may have cut the changes out. The zero
// Conditions lack nothing.
type Conditions struct {
	header  *capture.FileHeader
	changed bool // there is a change of the condition of a runtime
	unknown bool // a call shows that a runtime was slow or gone, at a time for which the header has no condition
}

// Begin takes the header of the recording.
func (k *Conditions) Begin(h *capture.FileHeader) { k.header = h }

// Change takes a change that is not from the header.
func (k *Conditions) Change(c *capture.Change) { k.changed = k.changed || c.IsCondition() }

// Call takes a call that has ended.
func (k *Conditions) Call(c *Call) {
	away, end := c.FromCache(), c.Began.Add(c.Took)
	if name := backend.NotReachedIn(c.Message); name != "" {
		away = append(away, name)
	}
	k.unknown = k.unknown || slices.ContainsFunc(away, func(name string) bool { return !k.Known(name, end) })
}

// Known reports whether the header has the condition of a runtime at a time.
func (k *Conditions) Known(name string, at time.Time) bool {
	return k.header == nil || slices.ContainsFunc(k.header.Backends, func(b capture.HeaderBackend) bool {
		return b.Name == name && b.State != "" && !at.Before(b.Since)
	})
}

// Lacking reports whether the recording lacks the conditions.
func (k *Conditions) Lacking() bool {
	return k.header != nil && !k.changed && (!k.header.Changes || k.unknown)
}
