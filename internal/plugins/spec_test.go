package plugins_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/internal/plugins"
)

// The program takes that for granted.
func TestTheFieldsThatTheSpecNamesFitTogether(t *testing.T) {
	cfg, err := criadapter.Hooks(criadapter.HookOptions{PodResources: true})
	require.NoError(t, err)
	misfits, err := plugins.Misfits(cfg)
	require.NoError(t, err)
	assert.Empty(t, misfits)
}

func TestAMistakeInTheSpecIsNamed(t *testing.T) {
	cfg, err := criadapter.Hooks(criadapter.HookOptions{})
	require.NoError(t, err)
	stop := cfg.Spec.Calls["StopContainer"]
	stop.ID, stop.After = "container_idd", "PostHaltContainer"
	cfg.Spec.Calls["StopContainer"] = stop
	delete(cfg.Spec.Answers["LinuxContainerResources"], "unified")
	cfg.Folder = t.TempDir()
	_, err = plugins.New(cfg)
	assert.ErrorContains(t, err, `calls.StopContainer: path container_idd: runtime.v1.StopContainerRequest has no field "container_idd" (did you mean "container_id"?)`)
	assert.ErrorContains(t, err, "calls.StopContainer: no plugin has a method PostHaltContainerHook that takes a ContainerResourceHookRequest")
	assert.ErrorContains(t, err, "calls.CreateContainer: answers: LinuxContainerResources.unified has no rule")
	_, err = plugins.ParseSpec([]byte("answers: {M: {a: nonzero -1..x, b: positive, c: some}}"))
	assert.ErrorContains(t, err, `invalid rule "nonzero -1..x"`)
	assert.ErrorContains(t, err, `invalid rule "some"`)
}
