package server

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/criproxy/criproxy/internal/fakecri"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// What a runtime was before was known only as long as calls were recorded in which it said it (issue 42).
func TestAnotherVersionOrProcessOfARuntimeIsRecorded(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	b := n.proxy.backends()[1]
	testkit.Eventually(t, "it has said what it is", func() bool { return b.condition().Runtime != "" })
	before := b.condition()
	assert.Regexp(t, fmt.Sprintf("^%d since [0-9]+$", os.Getpid()), before.Process)
	n.runtimes[1].Kill()
	n.isDown(1) // the cache knows what it was
	n.runtimes[1].Replace(fakecri.Config{Version: "9.0.0"})
	n.runtimes[1].Start()
	replaced := changed(t, n.proxy, capture.Replaced)
	assert.Equal(t, "beta.io was replaced: it is fakecri 9.0.0 now, before it was "+before.Runtime, replaced.String())
	n.isUp(1)
	b.process.Store("1 since 0")
	b.is("fakecri 9.0.0", nil, "1 since 0")
	restarted := changed(t, n.proxy, capture.Restarted)
	assert.Equal(t, fmt.Sprintf("beta.io was restarted: process 1 serves it now, process %d did before (fakecri 9.0.0)", os.Getpid()), restarted.String())
	assert.Equal(t, capture.Up, b.condition().State, "it is no condition")
}
