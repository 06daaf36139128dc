package capture

import (
	"cmp"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strings"
	"time"
)

// What happened, in a [Change].
const (
	Connecting = "connecting" // a backend: not asked yet
	Up         = "up"         // a backend answers
	Slow       = "slow"       // the cache answers what a backend does not answer in time
	Gone       = "gone"       // no call goes to a backend
	Removed    = "removed"    // a backend is no longer in the configuration, or the file of a plugin is gone

	Restarted = "restarted" // another process of the same version serves the socket of a backend, as Why says
	Replaced  = "replaced"  // another version or runtime serves it

	Serving    = "serving"  // the proxy takes calls
	Reloaded   = "reloaded" // it has a new configuration
	Refused    = "refused"  // it has refused a new configuration
	HandedOver = "handover" // another process has taken over its sockets
	Draining   = "draining" // it takes no new calls, and waits for those under way
	Stopped    = "stopped"  // it has ended

	StoodStill = "stood-still" // it did not run between Since and Time: it was stopped, or got no time of a processor

	PluginReady = "plugin-ready" // a plugin can be asked
	PluginDown  = "plugin-down"  // a plugin cannot be reached, or answers no call, or its file is wrong

	Unread = "unread" // stands where a part of the history cannot be read; it is never stored
)

// NowAt stands between a backend and its new address in the reason of Serving, Reloaded and HandedOver: "kata.io is now at
// /run/kata.sock, before at /run/old.sock".
const NowAt = " is now at "

// A Change is a change of the condition of a backend, or of the state of the proxy itself. Its JSON is stable.
type Change struct {
	Time    time.Time `json:"time"` // since when it is so
	What    string    `json:"what"`
	Backend string    `json:"backend,omitempty"` // what it happened to; "primary" if it has no name
	Plugin  string    `json:"plugin,omitempty"`
	Why     string    `json:"why,omitempty"` // in the words of the log

	Was   string    `json:"was,omitempty"`  // the condition before; empty if there was none
	Since time.Time `json:"since,omitzero"` // since when the condition before had lasted, or it did not run

	Pods       *int `json:"pods,omitempty"`       // of the backend; missing if not known
	Containers *int `json:"containers,omitempty"` // likewise

	Addresses map[string]string `json:"addresses,omitempty"` // :: backend → where it is, of Serving, Reloaded and HandedOver

	// Missing is set, of Serving, if the process before crashed or was killed: no call from then on is recorded.
	Missing time.Time `json:"missing,omitzero"`

	PID int `json:"pid"` // of the process that it happened to
}

// Lasted returns how long the condition before lasted; zero if there was none, or if the clock was set back meanwhile.
func (c *Change) Lasted() time.Duration {
	if c.Since.IsZero() {
		return 0
	}
	return max(c.Time.Sub(c.Since), 0)
}

// IsCondition reports whether the change is one of the condition of a backend. Restarted and Replaced are none: the condition
// of the backend stays what it is.
func (c *Change) IsCondition() bool {
	switch c.What {
	case Connecting, Up, Slow, Gone, Removed:
		return c.Backend != ""
	}
	return false
}

// Known reports whether this version of criproxy knows what happened. A newer one may have more.
func (c *Change) Known() bool {
	_, known := sentences[c.What]
	return known
}

// A ChangeKey identifies a change among all changes of a criproxy.
type ChangeKey struct {
	at                         int64
	what, backend, plugin, why string
}

// Key returns what identifies the change.
func (c *Change) Key() ChangeKey {
	return ChangeKey{c.Time.UnixNano(), c.What, c.Backend, c.Plugin, c.Why}
}

// hash returns a number that stands for the key in the index of a block.
func (k ChangeKey) hash() uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %q %q %q %q", k.at, k.what, k.backend, k.plugin, k.why)
	return h.Sum64()
}

// Change records a change. It returns when the change is in the recording.
func (r *Recorder) Change(c Change) {
	now := time.Now()
	r.record(&Event{Kind: Changed, Time: c.Time, Mono: now.Sub(r.began), Backend: c.Backend, Change: &c})
}

// Inherit records a change of an earlier process, as [Recorder.Restore] does with the events of a recording. It must be
// called before r records anything of its own.
func (r *Recorder) Inherit(c Change) {
	r.Change(c)
	r.restored = r.Recorded()
}

// String returns the change as a sentence, such as "kata.io is gone: connection refused (up for 2h0m0s before; 9 pods)".
func (c *Change) String() string {
	var s string
	switch {
	case c.Backend != "" && c.What == Removed:
		s = c.Backend + " is no longer in the configuration"
	case c.IsCondition():
		s = c.Backend + " is " + c.What
	case c.Backend != "":
		s = c.Backend + " was " + c.What
	case c.Plugin != "":
		s = "plugin " + c.Plugin + " is " + strings.TrimPrefix(c.What, "plugin-")
	case c.What == Unread:
		s = "a part of the history cannot be read"
	default:
		s = "criproxy " + cmp.Or(sentences[c.What], c.What)
	}
	if c.Why != "" {
		s += ": " + c.Why
	}
	var more []string
	if c.Was != "" && !c.Since.IsZero() {
		more = append(more, fmt.Sprintf("%s for %s before", strings.TrimPrefix(c.Was, "plugin-"), Lasting(c.Since, c.Time)))
	}
	if (c.What == Up || c.What == PluginReady) && c.Was == "" { // after a start, it may have been up before
		more = append(more, "its condition before is not known")
	}
	if !c.Missing.IsZero() {
		more = append(more, fmt.Sprintf("the process before crashed or was killed: calls of the %s before this may be missing", Lasting(c.Missing, c.Time)))
	}
	if counts := Concerned(c.Pods, c.Containers); counts != "" {
		more = append(more, counts)
	}
	if len(more) > 0 {
		s += " (" + strings.Join(more, ", ") + ")"
	}
	return s
}

// sentences has what can happen, and says what happened to the proxy.
var sentences = map[string]string{
	Up: "", Slow: "", Gone: "", Removed: "", Restarted: "", Replaced: "", PluginReady: "", PluginDown: "",
	Serving: "serves", Reloaded: "has a new configuration", Refused: "refuses a new configuration", HandedOver: "took over",
	Draining: "takes no new calls", Stopped: "has ended", StoodStill: "stood still",
}

// Count returns a number of things, such as "1 pod", "9 pods" or "2 retries". Whatever people read has its numbers from here.
func Count[N int | int64 | uint64](n N, what string) string {
	if stem, y := strings.CutSuffix(what, "y"); n != 1 && y {
		what = stem + "ies"
	} else if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// Concerned returns how many pods and containers a condition concerns, such as "1 pod, 2 containers", as far as that is known.
func Concerned(pods, containers *int) string {
	var all []string
	if pods != nil {
		all = append(all, Count(*pods, "pod"))
	}
	if containers != nil {
		all = append(all, Count(*containers, "container"))
	}
	return strings.Join(all, ", ")
}

// Lasting returns how long a condition lasted, with the precision with which people want to read it. It fits the two times
// as they stand beside it, with their milliseconds. It is never negative.
func Lasting(from, to time.Time) string {
	d := max(to.Truncate(time.Millisecond).Sub(from.Truncate(time.Millisecond)), 0)
	switch {
	case d >= 10*time.Second:
		d = d.Round(time.Second)
	case d >= time.Second:
		d = d.Round(100 * time.Millisecond)
	}
	return d.String()
}

// encode returns the change as JSON.
func (c *Change) encode() []byte {
	b, _ := json.Marshal(c) // cannot fail: it holds strings, numbers and times of this century
	return b
}

// decodeChange returns the change in b, or nil if there is none.
func decodeChange(b []byte) *Change {
	var c Change
	if json.Unmarshal(b, &c) != nil || c.What == "" {
		return nil
	}
	return &c
}
