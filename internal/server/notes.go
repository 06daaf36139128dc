package server

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/criproxy/criproxy/internal/memory"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/transport"
)

// maxOutages is how many outages of a backend the notes hold.
const maxOutages = 20

// notes hold the condition of a backend, its outages and its version, or the condition of a plugin. They are what status,
// metrics, health, the page and recordings show; the log and they say the same. They belong to the name of the backend or
// plugin: they outlive its connections, and a handover passes them on. See [records.follow] for a runtime that gets another
// name. They are safe for concurrent use.
type notes struct {
	mu   sync.Mutex
	kept noted
}

// noted is the content of notes, in the form that passes to the next process.
type noted struct {
	Runtime   string         `json:"runtime,omitempty"`
	API       []string       `json:"api,omitempty"`
	Outages   []admin.Outage `json:"outages,omitempty"`   // the latest first
	Condition string         `json:"condition,omitempty"` // empty: not asked yet
	Since     time.Time      `json:"since,omitzero"`      // zero: since the process began
	Why       string         `json:"why,omitempty"`       // why it became slow or gone, as the event and the outage say
	Now       string         `json:"now,omitempty"`       // why it still is, if that is other trouble
}

// is notes the runtime and the API that the backend has reported.
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

// became notes that a condition holds since a time, and returns the change. If the condition is the one that it was, it
// goes on, perhaps for another reason, and there is no change.
func (n *notes) became(condition string, since time.Time, why error, pods, containers *int) (change capture.Change, changed bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	reason := ""
	if why != nil {
		reason = why.Error()
	}
	return n.kept.became(condition, since, reason, pods, containers)
}

// became is [notes.became].
func (k *noted) became(condition string, since time.Time, reason string, pods, containers *int) (change capture.Change, changed bool) {
	if k.Condition == "" {
		k.Since = time.Time{} // connecting is no condition
	}
	if k.Condition == condition {
		if !isUp(condition) && reason != "" {
			k.Now = reason
			if sameTrouble(k.Why, reason) {
				k.Now = ""
			}
		}
		return change, false
	}
	if since.Before(k.Since) {
		since = k.Since // the clock was set back, or the reports came in another order
	}
	change = capture.Change{Time: since, What: condition, Why: reason, Was: k.Condition, Since: k.Since, Pods: pods, Containers: containers}
	if len(k.Outages) > 0 && k.Outages[0].To.IsZero() {
		k.Outages[0].To = since
	}
	if !isUp(condition) && condition != capture.Removed {
		if len(k.Outages) > 0 && k.Outages[0].State == condition && k.Outages[0].From.Equal(since) {
			k.Outages = k.Outages[1:] // it goes on: the backend has had another name meanwhile
		}
		k.Outages = slices.Insert(k.Outages, 0, admin.Outage{State: condition, From: since, Error: reason, Pods: pods, Containers: containers})
		k.Outages = k.Outages[:min(len(k.Outages), maxOutages)]
	} else {
		reason = ""
	}
	k.Condition, k.Since, k.Why, k.Now = condition, since, reason, ""
	return change, true
}

// isUp reports whether a condition is that of a backend or plugin that answers.
func isUp(condition string) bool { return condition == capture.Up || condition == capture.PluginReady }

// sameTrouble reports whether two reasons say the same: in the words of package dial, that a backend cannot be reached at one
// address, or that it hangs. A runtime that is killed ends its connection and then refuses others; one that hangs does so for
// longer and longer.
func sameTrouble(a, b string) bool {
	at, _, _ := strings.Cut(a, ": ")
	other, _, _ := strings.Cut(b, ": ")
	return a == b || at == other && strings.HasPrefix(at, "cannot be reached at ") || strings.HasPrefix(a, transport.Silent) && strings.HasPrefix(b, transport.Silent)
}

// reason returns why the backend is slow or gone: why it became so and, if it is so for another reason now, that.
func (k *noted) reason() string {
	if k.Now == "" {
		return k.Why
	}
	return k.Why + "; now: " + k.Now
}

// replay notes a change that an earlier process has recorded. If those before it are lost, it says itself what was before.
func (k *noted) replay(c *capture.Change) {
	k.Since = time.Time{} // order counts, not the clock, which may have been set back
	if c.Was != "" {
		k.became(c.Was, c.Since, "", nil, nil)
	}
	k.Condition, k.Since = c.Was, time.Time{}
	k.became(c.What, c.Time, c.Why, c.Pods, c.Containers)
	if c.What == capture.Removed {
		k.Condition, k.Since = "", time.Time{}
	}
}

// removed notes that the configuration lacks the backend now. why says more about that.
func (n *notes) removed(now time.Time, why string, pods, containers *int) (change capture.Change, changed bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.kept.Condition != "" {
		change, changed = n.kept.became(capture.Removed, now, why, pods, containers)
	}
	n.kept.Condition, n.kept.Since = "", time.Time{} // it may come back
	return change, changed
}

// goOn notes that the backend is one that had another name, with these notes.
func (n *notes) goOn(was noted, pods, containers *int) (change capture.Change, changed bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.kept.Runtime, n.kept.API = was.Runtime, was.API
	if was.Condition != "" {
		return n.kept.became(was.Condition, was.Since, was.Why, pods, containers)
	}
	n.kept.Since = was.Since
	return change, false
}

// connecting notes that the backend is not asked yet, since now at the latest, unless its condition is known.
func (n *notes) connecting(now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.kept.Condition == "" && n.kept.Since.IsZero() {
		n.kept.Since = now
	}
}

// before returns the condition that an earlier connection to the backend had, for the next one, which goes on from
// there. It is the zero State if nothing is known.
func (n *notes) before() memory.State {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range []memory.Condition{memory.Up, memory.Slow, memory.Gone} {
		if c.String() == n.kept.Condition {
			return memory.State{Condition: c, Since: n.kept.Since}
		}
	}
	return memory.State{}
}

// list returns the notes.
func (n *notes) list() noted {
	n.mu.Lock()
	defer n.mu.Unlock()
	kept := n.kept
	kept.Outages = slices.Clone(kept.Outages)
	return kept
}

// restore takes over the notes of another process. The condition goes on: that of a process that handed over as it is,
// that of one that has ended only if the backend was not up then, because nobody has looked since. A time to come is one
// before the clock was set back.
func (n *notes) restore(kept noted, handed bool) {
	if (isUp(kept.Condition) || kept.Condition == "") && !handed {
		kept.Condition, kept.Since = "", time.Time{}
	}
	if now := time.Now(); kept.Since.After(now) {
		kept.Since = now
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.kept = kept
}
