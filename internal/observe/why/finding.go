package why

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/criproxy/criproxy/internal/observe/calls"
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
	Text  string `json:"text"`  // all of it, with whole ids and answers
	Cure  string `json:"cure"`  // how to fix it; for a note, what to know

	// Runbook is the entry of the runbook that says more, such as "docs/runbook.md#a-runtime-is-gone".
	Runbook string `json:"runbook"`

	Headline string    `json:"headline,omitempty"` // how Text begins, for people: see Headline
	Rule     string    `json:"rule,omitempty"`     // which rule found it
	Cause    string    `json:"cause,omitempty"`    // what caused it, inferred; Text has what the calls show
	Sure     string    `json:"sure,omitempty"`     // "certain", or "likely" if there is a Cause
	Not      string    `json:"not,omitempty"`      // what it is not, although it looks like it
	Since    time.Time `json:"since,omitzero"`
	Last     time.Time `json:"last,omitzero"`      // when it was last seen
	Over     bool      `json:"over,omitempty"`     // it has ended by itself
	Pods     []string  `json:"pods,omitempty"`     // NAMESPACE/NAME; empty if it is about the whole node
	Backends []string  `json:"backends,omitempty"` // the runtimes concerned
	Count    int       `json:"count,omitempty"`    // of calls that show it
	Evidence []Proof   `json:"evidence,omitempty"` // some of these calls, the earliest first
	Show     string    `json:"show,omitempty"`     // flags of criproxy view that select the calls; empty if only changes show it
	Older    bool      `json:"-"`                  // the calls that were looked at begin with it: it may be older than Since

	past    string // Text as it reads when it is over; empty if it reads the same
	sandbox string // the beginning of the id of the latest sandbox that the calls are about, if they say it
	shim    string // the container whose shim did not answer, which made a runtime slow
}

// Sentence returns what the finding says, with its cause.
func (f *Finding) Sentence() string {
	if f.Cause == "" {
		return f.Text
	}
	return f.Text + "; probably: " + f.Cause
}

// Brief returns the headline of a finding, with its cause. Findings about a node are their own headlines.
func (f *Finding) Brief() string {
	brief := *f
	brief.Text = cmp.Or(f.Headline, f.Text)
	return brief.Sentence()
}

// headline is how many characters a headline has at most.
const headline = 160

// separator stands between two parts of a text.
const separator = "; "

// Parts returns the parts of what the finding says, for people, each in at most n characters.
func (f *Finding) Parts(n int) []string {
	parts := strings.Split(f.Text, separator)
	for i, part := range parts {
		parts[i] = Short(part, n)
	}
	return parts
}

// Headline returns how a text begins, in at most 160 characters for people: its first parts, or the beginning and the end of the
// first one.
func Headline(text string) string {
	head, more, ok := strings.Cut(text, separator)
	for head = Short(head, headline); ok; {
		var part string
		part, more, ok = strings.Cut(more, separator)
		if part = head + separator + Short(part, len(part)); utf8.RuneCountInString(part) > headline {
			break
		}
		head = part
	}
	return head
}

// Short returns a text for people in at most n characters, or its beginning and its end, where programs written in Go put the
// cause of an error. It has the first 12 digits of each id, with a mark in a path, which is none without the other ones.
func Short(text string, n int) string {
	text = ids.ReplaceAllString(idsInPaths.ReplaceAllString(text, "$1…"), "$1")
	text = strings.Join(strings.Fields(calls.Sanitize(text)), " ")
	if utf8.RuneCountInString(text) <= n {
		return text
	}
	return calls.Cut(text, n-len(" ... "))
}

// ids are those of containers, sandboxes and images, idsInPaths those in the name of a folder or file, with its beginning.
var (
	ids        = regexp.MustCompile(`([0-9a-f]{12})[0-9a-f]{20,}`)
	idsInPaths = regexp.MustCompile(`(/[^/\s":@]*?[0-9a-f]{12})[0-9a-f]{20,}`)
)

// end notes that what a finding says has ended, and how. The calls that show it may be nil.
func (f *Finding) end(how string, by ...*call) {
	f.Over, f.Text = true, cmp.Or(f.past, f.Text)+how
	if f.Level == Error {
		f.Level = Warning
	}
	f.decided(by...)
}

// State says for people whether a finding goes on and, if it does not, whether it succeeded in the end.
func (f *Finding) State() string {
	switch {
	case !f.Over:
		return "goes on"
	case strings.Contains(f.Text, notTried):
		return "not tried since"
	}
	return "is over"
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

// Sort sorts all in place, what goes on first, and the worst first of that and of what is over, and returns it. Otherwise it keeps
// the order.
func Sort(all []Finding) []Finding {
	rank := func(f Finding) int {
		if f.Over {
			return len(levels) + f.Level.Rank()
		}
		return f.Level.Rank()
	}
	slices.SortStableFunc(all, func(a, b Finding) int { return cmp.Compare(rank(a), rank(b)) })
	return all
}

// consequences puts a finding about a runtime that a shim made slow behind the finding about this shim, if there is one, which has the
// cure of both.
func consequences(all []Finding) {
	for i := len(all) - 1; i >= 0; i-- {
		f := all[i]
		j := slices.IndexFunc(all, func(o Finding) bool { return f.shim != "" && o.About == f.shim && o.Cure == f.Cure && o.Over == f.Over })
		if j < 0 {
			continue
		}
		f.Cure = "see to the shim, as said of " + f.shim + ": nothing is wrong with " + f.About + " itself"
		copy(all[i:], all[i+1:max(i, j)+1])
		all[max(i, j)] = f
	}
}

// Rank returns the place of a level, with 0 for the worst.
func (l Level) Rank() int { return slices.Index(levels, l) }

var levels = []Level{Error, Warning, Note}
