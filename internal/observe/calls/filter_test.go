package calls_test

import (
	"cmp"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/testing/patterns"
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
		{"other clients", calls.Filter{Client: "!kube*"}, []string{"Unknown"}},
		{"status", calls.Filter{Status: "NotFound"}, []string{"Get"}},
		{"as gRPC writes it", calls.Filter{Status: "NOT_FOUND,unimplemented"}, []string{"Get", "Unknown"}},
		{"other statuses, of calls that have one", calls.Filter{Status: "!OK,NotFound"}, []string{"Unknown"}},
		{"namespace", calls.Filter{Namespace: "shelf"}, []string{"Put"}},
		{"pod", calls.Filter{Pod: "T*"}, []string{"Put"}},
		{"another pod, not none", calls.Filter{Pod: "!X*"}, []string{"Put"}},
		{"pods of a namespace", calls.Filter{Pod: "sh*/T*"}, []string{"Put"}},
		{"and of another one", calls.Filter{Pod: "!shelf/*|X"}, nil},
		{"any pod", calls.Filter{Pod: "*"}, []string{"Put"}},
		{"another namespace", calls.Filter{Namespace: "!X*"}, []string{"Put"}},
		{"another container", calls.Filter{Container: "!X*"}, nil},
		{"another backend", calls.Filter{Backend: "!beta.io"}, []string{"Get"}},
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

// While a runtime is gone it is called in no leg, and a filter must still find what its cache answered.
func TestACacheAnswersForABackend(t *testing.T) {
	answered := func(by ...string) *calls.Call {
		return &calls.Call{Ended: true, Legs: []*calls.Leg{{Header: metadata.MD{backend.HeaderKey: by}}, {Number: 1, Backend: "primary"}}}
	}
	for _, f := range []calls.Filter{{FromCache: true}, {Backend: "beta.io"}} {
		assert.True(t, f.Match(answered("beta.io")))
		assert.False(t, f.Match(answered()))
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
		{"!Run*", "", false},
		{"*", "", false},
		{"!Run*|Stop*", "StopContainer", false},
		{"!Run*,Stop*", "ListPods", true},
		{"*web*", "shelf/web-1", true},
		{"*", "a/b/c", true},
	} {
		assert.Equal(t, c.want, calls.Matches(c.patterns, c.name), "%s: %s", c.patterns, c.name)
	}
}

// 'Run*' selected every method of RuntimeService.
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

// testbed/browser holds the page to the same table.
func TestFlagsTakeThePatternsOfTheTable(t *testing.T) {
	var methods []string
	for _, d := range []grpc.ServiceDesc{runtimeapi.RuntimeService_ServiceDesc, runtimeapi.ImageService_ServiceDesc} {
		for _, m := range d.Methods {
			methods = append(methods, "/"+d.ServiceName+"/"+m.MethodName)
		}
		for _, m := range d.Streams {
			methods = append(methods, "/"+d.ServiceName+"/"+m.StreamName)
		}
	}
	for _, r := range patterns.Table(t, "testdata/patterns.txt") {
		err := cmp.Or(r.Filter.Check(), calls.UnmatchedMethod(r.Filter.Method, methods), calls.Unmatched("backend", r.Filter.Backend, "backend", []string{"kata.io", "primary"}))
		if r.Refused {
			assert.EqualError(t, err, "-"+r.Flag+": "+r.Says)
		} else {
			assert.NoError(t, err, "%s: %s", r.Flag, r.Patterns)
		}
	}
}

func TestAPatternThatMatchesNoMethodOfASmallAPINamesThem(t *testing.T) {
	methods := []string{"/runtime.v1.RuntimeService/RunPodSandbox", "/runtime.v1.RuntimeService/ListPods", "/x/!ListPods"}
	assert.EqualError(t, calls.UnmatchedMethod("Nope*", methods), `-method: "Nope*" matches no method of this API; want ListPods, RunPodSandbox, !ListPods`)
	assert.NoError(t, calls.UnmatchedMethod("*RuntimeService/Run*,!List*", methods))
}
