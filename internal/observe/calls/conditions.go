package calls

import (
	"slices"
	"strings"
	"time"

	"github.com/criproxy/criproxy/internal/observe/capture"
)

// Conditions say whether a recording has the conditions of its runtimes. If it lacks them, outages are inferred from calls.
// What is there decides: the header may promise changes that were cut out. The zero Conditions lack nothing.
type Conditions struct {
	header  *capture.FileHeader
	changed bool // there is a change of a runtime
	untold  bool // a call shows that a runtime was slow or gone, at a time of which the header does not tell
}

// Begin takes the header of the recording.
func (k *Conditions) Begin(h *capture.FileHeader) { k.header = h }

// Change takes a change that is not from the header.
func (k *Conditions) Change(c *capture.Change) { k.changed = k.changed || c.Backend != "" }

// Call takes a call that has ended.
func (k *Conditions) Call(c *Call) {
	away, end := c.Remembered(), c.Began.Add(c.Took)
	if name := NotReached(c.Message); name != "" {
		away = append(away, name)
	}
	k.untold = k.untold || slices.ContainsFunc(away, func(backend string) bool { return !k.Told(backend, end) })
}

// Told reports whether the header tells the condition that a runtime had at a time.
func (k *Conditions) Told(backend string, at time.Time) bool {
	return k.header == nil || slices.ContainsFunc(k.header.Backends, func(b capture.HeaderBackend) bool {
		return b.Name == backend && b.State != "" && !at.Before(b.Since)
	})
}

// Lacking reports whether the recording lacks the conditions.
func (k *Conditions) Lacking() bool {
	return k.header != nil && !k.changed && (!k.header.Changes || k.untold)
}

// NotReached returns the runtime that criproxy could not reach, as it says in the message of a status, or "".
func NotReached(message string) string {
	_, rest, _ := strings.Cut(message, "criproxy: backend ")
	for _, words := range []string{" cannot be reached at ", " is gone since "} {
		if name, _, ok := strings.Cut(rest, words); ok {
			return name
		}
	}
	return ""
}
