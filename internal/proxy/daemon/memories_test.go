package daemon

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestMemoryFollowsItsRuntime(t *testing.T) {
	old := map[string]string{"primary": "/a", "beta.io": "/b"}
	for name, c := range map[string]struct {
		now  []Place
		want map[string]string
	}{
		"nothing changes":             {[]Place{{"primary", "/a"}, {"beta.io", "/b"}}, map[string]string{"primary": "primary", "beta.io": "beta.io"}},
		"a socket moves":              {[]Place{{"primary", "/a"}, {"beta.io", "/new"}}, map[string]string{"primary": "primary", "beta.io": "beta.io"}},
		"a runtime is renamed":        {[]Place{{"primary", "/a"}, {"gamma.io", "/b"}}, map[string]string{"primary": "primary", "gamma.io": "beta.io"}},
		"names are swapped":           {[]Place{{"primary", "/b"}, {"beta.io", "/a"}}, map[string]string{"primary": "beta.io", "beta.io": "primary"}},
		"the second becomes the only": {[]Place{{"primary", "/b"}}, map[string]string{"primary": "beta.io"}},
		"one takes another's place":   {[]Place{{"primary", "/b"}, {"beta.io", "/new"}}, map[string]string{"primary": "beta.io"}},
		"a runtime is new":            {[]Place{{"primary", "/a"}, {"gamma.io", "/c"}}, map[string]string{"primary": "primary", "gamma.io": "gamma.io"}},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, c.want, (&Memories{at: old}).sources(c.now)) })
	}
}
