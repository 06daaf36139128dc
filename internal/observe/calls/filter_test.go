package calls_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"google.golang.org/grpc/metadata"

	"github.com/criproxy/criproxy/internal/memory"
	"github.com/criproxy/criproxy/internal/observe/calls"
)

func TestFiltersSelectCalls(t *testing.T) {
	ended, underWay := assembled(t)
	all := append(ended, underWay...)
	for _, c := range []struct {
		name   string
		filter calls.Filter
		want   []string
	}{
		{"all but criproxy's own", calls.Filter{}, []string{"Put", "List", "Get", "Unknown", "Stream"}},
		{"those too", calls.Filter{Own: true}, []string{"Put", "List", "Get", "Unknown", "Version", "Stream"}},
		{"method", calls.Filter{Method: "P*|Li?t"}, []string{"Put", "List"}},
		{"method with its service", calls.Filter{Method: "other.Service/*"}, []string{"Unknown"}},
		{"backend", calls.Filter{Backend: "beta.*"}, []string{"Put", "List"}},
		{"the primary", calls.Filter{Backend: "primary"}, []string{"List", "Get"}},
		{"client", calls.Filter{Client: "kube*"}, []string{"Put", "List", "Get", "Stream"}},
		{"status", calls.Filter{Status: "NotFound"}, []string{"Get"}},
		{"as gRPC writes it", calls.Filter{Status: "NOT_FOUND,unimplemented"}, []string{"Get", "Unknown"}},
		{"other statuses, of calls that have one", calls.Filter{Status: "!OK,NotFound"}, []string{"Unknown"}},
		{"namespace", calls.Filter{Namespace: "shelf"}, []string{"Put"}},
		{"pod", calls.Filter{Pod: "T*"}, []string{"Put"}},
		{"id", calls.Filter{ID: "9"}, []string{"Get"}},
		{"id without what is before it", calls.Filter{ID: "7f"}, []string{"Put"}},
		{"slower", calls.Filter{Slower: 8 * time.Millisecond}, []string{"List"}},
		{"pod's life by name", calls.Filter{FollowPod: "Tale"}, []string{"Put"}},
		{"by namespace and name", calls.Filter{FollowPod: "shelf/Tale"}, []string{"Put"}},
		{"by id", calls.Filter{FollowPod: "beta.io__7"}, []string{"Put"}},
		{"words anywhere", calls.Filter{Find: "NOTfound kube"}, []string{"Get"}},
		{"words of several calls", calls.Filter{Find: "Tale notfound"}, nil},
		{"one call", calls.Filter{Call: all[1].ID}, []string{"List"}},
		{"all of it", calls.Filter{Method: "Put", Backend: "primary"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			assert.NoError(t, c.filter.Check())
			var got []string
			for _, one := range all {
				if c.filter.Match(one) {
					got = append(got, calls.ShortMethod(one.Method))
				}
			}
			assert.Equal(t, c.want, got)
		})
	}
}

// While a runtime is gone it is called in no leg, and a filter must still find what memory answered for it.
func TestMemoryAnswersForABackend(t *testing.T) {
	answered := func(by ...string) *calls.Call {
		return &calls.Call{Ended: true, Legs: []*calls.Leg{{Header: metadata.MD{memory.HeaderKey: by}}, {Number: 1, Backend: "primary"}}}
	}
	for _, f := range []calls.Filter{{Memory: true}, {Backend: "beta.io"}} {
		assert.True(t, f.Match(answered("beta.io")))
		assert.False(t, f.Match(answered()))
	}
}

func TestAnInvalidFilterIsRefused(t *testing.T) {
	for want, f := range map[string]calls.Filter{
		`-method: "[" is not a pattern`:   {Method: "Run*|["},
		`-pod: "[a" is not a pattern`:     {Pod: "[a"},
		`-status: "Fine" matches no code`: {Status: "!OK,Fine"},
	} {
		assert.ErrorContains(t, f.Check(), want)
	}
}

// why printed -status 'Unavailable|DeadlineExceeded', which was refused: issue 43.
func TestPatternsHaveOneGrammar(t *testing.T) {
	for _, c := range []struct {
		patterns, name string
		want           bool
	}{
		{"Run*|Stop*", "StopContainer", true},
		{"Run*,Stop*", "StopContainer", true},
		{" run* , stop* ", "StopContainer", true},
		{"Run*|", "", false},
		{"!Run*|Stop*", "StopContainer", false},
		{"!Run*,Stop*", "ListPods", true},
		{"*web*", "shelf/web-1", true},
		{"*", "a/b/c", true},
	} {
		assert.Equal(t, c.want, calls.Matches(c.patterns, c.name), "%s: %s", c.patterns, c.name)
	}
	for _, status := range []string{"Unavailable|DeadlineExceeded", "!OK|canceled", "Un*,Cancelled", "deadline_exceeded"} {
		assert.NoError(t, (&calls.Filter{Status: status}).Check(), status)
	}
}

// 'Run*' selected every method of RuntimeService. testbed/browser holds the page to the same.
func TestAPatternWithoutASlashIsAboutTheMethodsOwnName(t *testing.T) {
	const run, list, image = "/runtime.v1.RuntimeService/RunPodSandbox", "/runtime.v1.RuntimeService/ListPodSandbox", "/runtime.v1.ImageService/ListImages"
	all := []string{run, list, image}
	for patterns, want := range map[string][]string{
		"Run*":                               {run},
		"r*":                                 {run},
		"!Run*":                              {list, image},
		"Run*|Stop*":                         {run},
		"*Service*":                          nil,
		"runtime.v1.*":                       nil,
		"*":                                  all,
		"ImageService/*":                     {image},
		"imageservice/list*,RunPodSandbox":   {run, image},
		"Service/*":                          nil,
		"*/List*":                            {list, image},
		"!*/List*":                           {run},
		"runtime.v1.*/List*":                 {list, image},
		"runtime.v1.ImageService/ListImages": {image},
		"/runtime.v1.ImageService/*":         {image},
		"/runtime.v2.*/*":                    nil,
	} {
		var got []string
		for _, m := range all {
			if calls.MatchesMethod(patterns, m) {
				got = append(got, m)
			}
		}
		assert.Equal(t, want, got, patterns)
	}
}

func TestAPatternThatCanMatchNothingIsAnError(t *testing.T) {
	methods := []string{"/runtime.v1.RuntimeService/RunPodSandbox", "/runtime.v1.RuntimeService/PullPods", "/runtime.v1.RuntimeService/ListPods", "/runtime.v1.RuntimeService/ListImages"}
	for want, err := range map[string]error{
		`-status: "Unavailble" matches no code (did you mean "Unavailable"?)`:                                      (&calls.Filter{Status: "!OK|Unavailble"}).Check(),
		`-method: "RunPodSandbx" matches no method of this API (did you mean "RunPodSandbox"?)`:                    calls.UnmatchedMethod("List*|RunPodSandbx", methods),
		`-method: "Lsit*" matches no method of this API (did you mean "List*"?)`:                                   calls.UnmatchedMethod("Lsit*", methods),
		`-method: "Lisst*" matches no method of this API (did you mean "List*"?)`:                                  calls.UnmatchedMethod("Lisst*", methods),
		`-method: "RuntimeServce/Run*" matches no method of this API (did you mean "RuntimeService/Run*"?)`:        calls.UnmatchedMethod("RuntimeServce/Run*", methods),
		`-backend: "delta" matches no backend; want primary, beta.io`:                                              calls.Unmatched("backend", "delta", "backend", []string{"primary", "beta.io"}),
		`-pod: "!" has no pattern: want one such as web*; | separates several, and a leading ! selects all others`: (&calls.Filter{Pod: "!"}).Check(),
	} {
		assert.EqualError(t, err, want)
	}
	assert.NoError(t, calls.UnmatchedMethod("*RuntimeService/Run*,!List*", append(methods, "/x/!ListPods")))
}
