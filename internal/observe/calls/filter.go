package calls

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/criproxy/criproxy/internal/observe/capture"
)

// A Filter says which calls to show. The zero Filter shows all calls except those that criproxy makes
// itself. pattern.go says what patterns are.
type Filter struct {
	Method    string        // patterns: "Run*|Stop*", or with the service: "ImageService/*"
	Backend   string        // patterns for one of the backends that were called, or for which a cache answered
	Client    string        // patterns for the client's name
	Status    string        // patterns for the code of a call that has ended: "OK", "NotFound|Unavailable", "!OK"
	Namespace string        // patterns
	Pod       string        // patterns for its name, or with its namespace: "default/*"
	Container string        // patterns for its name
	ID        string        // the beginning of an id, with or without the backend's prefix
	Slower    time.Duration // calls that took at least this long
	Own       bool          // also calls that criproxy makes itself
	FromCache bool          // only calls that a cache answered, for at least one backend
	Find      string        // words that occur anywhere: in names, ids, the status or its message
	Call      uint64        // the number of a call; zero for all

	// FollowPod shows the calls about one pod. It is the pod's name, NAMESPACE/NAME, its uid, or
	// the beginning of its sandbox's id; or several of these, separated by commas.
	FollowPod string
}

// Check returns the first mistake in a filter, or nil if there is none.
func (f *Filter) Check() error {
	for _, p := range []struct{ name, value string }{
		{"method", f.Method}, {"backend", f.Backend}, {"client", f.Client}, {"status", f.Status}, {"namespace", f.Namespace}, {"pod", f.Pod}, {"container", f.Container},
	} {
		if err := checkPatterns(p.name, p.value); err != nil {
			return err
		}
	}
	return Unmatched("status", strings.ReplaceAll(f.Status, "_", ""), "code", allCodes())
}

// OnlyFailed reports whether the filter selects only calls that have failed.
func (f *Filter) OnlyFailed() bool { return f.Status != "" && !matchesCode(f.Status, codes.OK) }

// Match reports whether to show a call. For a call under way it uses the duration so far; such a
// call has no status.
func (f *Filter) Match(c *Call) bool {
	return (f.Own || !c.Own) &&
		(f.Method == "" || MatchesMethod(f.Method, c.Method)) &&
		(f.Backend == "" || Matches(f.Backend, c.Meant()...)) &&
		(f.Client == "" || Matches(f.Client, c.From())) &&
		(f.Status == "" || c.Ended && matchesCode(f.Status, c.Code)) &&
		(f.Namespace == "" || Matches(f.Namespace, c.About.Namespace)) &&
		(f.Pod == "" || matchesPod(f.Pod, c.About)) &&
		(f.Container == "" || Matches(f.Container, c.About.Container)) &&
		(f.ID == "" || hasID(c, f.ID)) &&
		c.Took >= f.Slower &&
		(!f.FromCache || len(c.FromCache()) > 0) &&
		(f.Call == 0 || c.ID == f.Call) &&
		(f.Find == "" || c.has(strings.Fields(strings.ToLower(f.Find)))) &&
		(f.FollowPod == "" || f.follows(c))
}

// MatchChange reports whether to show a change: unless the filter selects calls of other backends, or
// about some method, client, status, pod or time, which a change does not have. One that says that calls are missing is
// always shown.
func (f *Filter) MatchChange(c *capture.Change) bool {
	if !c.Missing.IsZero() {
		return true
	}
	calls := *f
	calls.Backend, calls.Own = "", false
	return calls == Filter{} && (f.Backend == "" || c.Backend == "" || Matches(f.Backend, c.Backend))
}

// has reports whether all words, which are in lower case, occur in what a line shows of the call.
func (c *Call) has(words []string) bool {
	a := c.About
	text := []string{ShortMethod(c.Method), c.From(), strings.Join(c.Meant(), ", "), a.Namespace + "/" + cmp.Or(a.Pod, a.Name) + "/" + a.Container, a.UID, strings.Join(a.IDs, " "), a.Image, c.Message}
	if c.Ended {
		text = append(text, c.Code.String())
	}
	all := strings.ToLower(strings.Join(text, "\n"))
	return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(all, w) })
}

func (f *Filter) follows(c *Call) bool {
	a := c.About
	if a.Pod == "" && a.UID == "" && len(a.IDs) == 0 {
		return false
	}
	return slices.ContainsFunc(strings.Split(f.FollowPod, ","), func(pod string) bool {
		return pod != "" && (pod == a.Pod || pod == a.Namespace+"/"+a.Pod || pod == a.UID || hasID(c, pod))
	})
}

// hasID reports whether a call is about an id that begins with start, with or without the backend's
// prefix.
func hasID(c *Call, start string) bool {
	return slices.ContainsFunc(c.About.IDs, func(id string) bool {
		if c.names != nil {
			if bare := c.names.Bare(id); bare != "" && strings.HasPrefix(bare, start) {
				return true
			}
		}
		return strings.HasPrefix(id, start)
	})
}
