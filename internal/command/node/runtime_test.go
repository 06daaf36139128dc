package node

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/observe/capture"
)

func TestAnOutageThatBeganAnewHasItsOwnBeginning(t *testing.T) {
	at := func(second int) time.Time { return time.Date(2026, 11, 24, 9, 54, second, 0, time.UTC) }
	v := &view{now: at(50), changes: []*capture.Change{
		{Time: at(1), Backend: "kata.io", What: capture.Slow, Was: capture.Up},
		{Time: at(8), Backend: "kata.io", What: capture.Gone, Was: capture.Slow},
		{Time: at(20), Backend: "kata.io", What: capture.Up, Was: capture.Gone},
		{Time: at(40), Backend: "kata.io", What: capture.Gone, Was: capture.Up, Why: "connection refused"},
	}}
	found := v.outages()
	require.Len(t, found, 1)
	f := found[0]
	assert.Equal(t, at(40), f.Since, "it was up before")
	assert.False(t, f.Over)
	assert.Regexp(t, `^kata\.io is gone since \S*:40\.000; from \S*:01\.000 on it was gone twice and slow once; no call of clients failed because of it$`, f.Text)
	require.Len(t, f.Evidence, 4, "the recovery between them is told as well")
	assert.Contains(t, f.Evidence[2].Text, "is up")
}
