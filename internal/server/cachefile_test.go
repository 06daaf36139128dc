package server

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestACacheFollowsItsRuntime(t *testing.T) {
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
		t.Run(name, func(t *testing.T) { assert.Equal(t, c.want, (&Set{at: old}).sources(c.now)) })
	}
}

// What was remembered of several runtimes is out of date when one has been alone meanwhile, which has no cache.
func TestARuntimeAloneLeavesNoCacheFile(t *testing.T) {
	in, all := Folder{Path: t.TempDir()}, []Place{{"primary", "/a"}, {"beta.io", "/b"}}
	path := in.File(all[0]).Path
	set := NewSet(nil)
	first := set.Stage(all, in, true)
	first.Commit()
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	alone := set.Stage(all[:1], in, false)
	assert.Same(t, first.Backends["primary"], alone.Backends["primary"])
	alone.Commit()
	assert.NoFileExists(t, path)

	require.NoError(t, os.WriteFile(path, nil, 0o600)) // by an earlier process
	NewSet(nil).Stage(all[:1], in, false).Commit()
	assert.NoFileExists(t, path)
}
