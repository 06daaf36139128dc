package config

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// Reloads that changed different things read alike in criproxy events.
func TestBriefNamesWhatAReloadChanges(t *testing.T) {
	was := Config{IDs: PrefixIDs, Backends: []Backend{{Address: "/run/a.sock"}, {Name: "old.io", Address: "/run/old.sock", Policy: "skip"}}}
	will := Config{IDs: NativeIDs, StreamPort: 7, Backends: []Backend{{Address: "/run/moved.sock", MaxCalls: 9}, {Name: "new.io", Address: "/run/new.sock", Policy: "fail"}}}
	assert.Equal(t, []string{
		"backends[new.io] is new", "backends[old.io] is no longer there", "backends[primary].maxCalls: 9, was none", "streamPort: 7, was none",
	}, was.Settings().Brief(will.Settings()))
	assert.Empty(t, was.Settings().Brief(was.Settings()))
	will.Export.URL, will.Export.Node = "http://127.0.0.1:4317", "here"
	assert.Equal(t, "and 1 more", was.Settings().Brief(will.Settings())[mostBrief])
}
