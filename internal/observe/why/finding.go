package why

import (
	"cmp"
	"slices"
	"time"
)

// A Level is how bad a finding is.
type Level string

// The levels.
const (
	Error   Level = "error"   // something does not work
	Warning Level = "warning" // it works, with consequences
	Note    Level = "note"    // good to know
)

// A Finding is one thing that is wrong, with the node or with the calls on it. Its JSON is stable. Findings about a node
// have only the first five fields.
type Finding struct {
	Level Level  `json:"level"`
	About string `json:"about"` // the part of the node: "kubelet", a pod, a runtime, ...
	Text  string `json:"text"`
	Cure  string `json:"cure"` // how to fix it; for a note, what to know

	// Runbook is the entry of the runbook that says more, such as "docs/runbook.md#a-runtime-is-gone".
	Runbook string `json:"runbook"`

	Rule     string    `json:"rule,omitempty"`  // which rule found it
	Cause    string    `json:"cause,omitempty"` // what caused it, inferred; Text has what the calls show
	Sure     string    `json:"sure,omitempty"`  // "certain", or "likely" if there is a Cause
	Not      string    `json:"not,omitempty"`   // what it is not, although it looks like it
	Since    time.Time `json:"since,omitzero"`
	Last     time.Time `json:"last,omitzero"`      // when it was last seen
	Over     bool      `json:"over,omitempty"`     // it has ended by itself
	Pods     []string  `json:"pods,omitempty"`     // NAMESPACE/NAME; empty if it is about the whole node
	Backends []string  `json:"backends,omitempty"` // the runtimes concerned
	Count    int       `json:"count,omitempty"`    // of calls that show it
	Evidence []Proof   `json:"evidence,omitempty"` // some of these calls, the earliest first
	Show     string    `json:"show,omitempty"`     // flags of criproxy view that select the calls; empty if only changes show it
}

// Sentence returns what the finding says, with its cause.
func (f *Finding) Sentence() string {
	if f.Cause == "" {
		return f.Text
	}
	return f.Text + "; probably: " + f.Cause
}

// end notes that what a finding says has ended, and how. The calls that show it may be nil.
func (f *Finding) end(how string, by ...*call) {
	f.Over, f.Text = true, f.Text+how
	if f.Level == Error {
		f.Level = Warning
	}
	f.decided(by...)
}

// Lasts reports whether something is wrong now: a note is no fault, and what is over needs no cure.
func (f *Finding) Lasts() bool { return !f.Over && f.Level != Note }

// A Proof is a call or a change that shows a finding.
type Proof struct {
	Time time.Time `json:"time"`
	Text string    `json:"text"`
}

// How sure a finding is.
const (
	Certain = "certain"
	Likely  = "likely"
)

// Sort sorts all in place, the worst first and what is over behind the others of its level, and returns it. Otherwise it
// keeps the order.
func Sort(all []Finding) []Finding {
	rank := func(f Finding) int {
		if f.Over {
			return 2*f.Level.Rank() + 1
		}
		return 2 * f.Level.Rank()
	}
	slices.SortStableFunc(all, func(a, b Finding) int { return cmp.Compare(rank(a), rank(b)) })
	return all
}

// Rank returns the place of a level, with 0 for the worst.
func (l Level) Rank() int { return slices.Index([]Level{Error, Warning, Note}, l) }
