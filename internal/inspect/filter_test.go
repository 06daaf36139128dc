package inspect_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/criproxy/criproxy/internal/inspect"
)

func TestFiltersSelectCalls(t *testing.T) {
	ended, underWay := calls(t)
	all := append(ended, underWay...)
	for _, c := range []struct {
		name   string
		filter inspect.Filter
		want   []string
	}{
		{"all but criproxy's own", inspect.Filter{}, []string{"Put", "List", "Get", "Unknown", "Stream"}},
		{"those too", inspect.Filter{Own: true}, []string{"Put", "List", "Get", "Unknown", "Version", "Stream"}},
		{"method", inspect.Filter{Method: "P*|Li?t"}, []string{"Put", "List"}},
		{"method with its service", inspect.Filter{Method: "other.Service/*"}, []string{"Unknown"}},
		{"backend", inspect.Filter{Backend: "beta.*"}, []string{"Put", "List"}},
		{"the primary", inspect.Filter{Backend: "primary"}, []string{"List", "Get"}},
		{"client", inspect.Filter{Client: "kube*"}, []string{"Put", "List", "Get", "Stream"}},
		{"status", inspect.Filter{Status: "NotFound"}, []string{"Get"}},
		{"as gRPC writes it", inspect.Filter{Status: "NOT_FOUND,unimplemented"}, []string{"Get", "Unknown"}},
		{"other statuses, of calls that have one", inspect.Filter{Status: "!OK,NotFound"}, []string{"Unknown"}},
		{"namespace", inspect.Filter{Namespace: "shelf"}, []string{"Put"}},
		{"pod", inspect.Filter{Pod: "T*"}, []string{"Put"}},
		{"id", inspect.Filter{ID: "9"}, []string{"Get"}},
		{"id without what is before it", inspect.Filter{ID: "7f"}, []string{"Put"}},
		{"slower", inspect.Filter{Slower: 8 * time.Millisecond}, []string{"List"}},
		{"pod's life by name", inspect.Filter{FollowPod: "Tale"}, []string{"Put"}},
		{"by namespace and name", inspect.Filter{FollowPod: "shelf/Tale"}, []string{"Put"}},
		{"by id", inspect.Filter{FollowPod: "beta.io__7"}, []string{"Put"}},
		{"all of it", inspect.Filter{Method: "Put", Backend: "primary"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			assert.NoError(t, c.filter.Check())
			var got []string
			for _, one := range all {
				if c.filter.Match(one) {
					got = append(got, inspect.ShortMethod(one.Method))
				}
			}
			assert.Equal(t, c.want, got)
		})
	}
}

func TestAnInvalidFilterIsRefused(t *testing.T) {
	for want, f := range map[string]inspect.Filter{
		`-method: "[" is not a pattern`: {Method: "Run*|["},
		`-pod: "[a" is not a pattern`:   {Pod: "[a"},
		`-status: "Fine" is not a code`: {Status: "!OK,Fine"},
	} {
		assert.ErrorContains(t, f.Check(), want)
	}
}
