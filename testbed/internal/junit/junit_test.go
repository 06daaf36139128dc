package junit

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestSpecsThatPassedAreInFocusAgain(t *testing.T) {
	direct := Outcomes{
		"[It] [sig-node] Pods should run [NodeConformance] [sig-node, NodeConformance]":       {State: Passed},
		"[It] [sig-node] Pods should run twice [NodeConformance] [sig-node, NodeConformance]": {State: Passed},
		"[It] [sig-node] Pods should fly [sig-node]":                                          {State: Failed},
	}
	through := Outcomes{
		"[It] [sig-node] Pods should run [NodeConformance] [sig-node, NodeConformance]":       {State: Failed},
		"[It] [sig-node] Pods should run twice [NodeConformance] [sig-node, NodeConformance]": {State: Passed},
		"[It] [sig-node] Pods should fly [sig-node]":                                          {State: Failed},
	}
	again := direct.PassedAndNot(through)
	assert.Equal(t, []string{"[It] [sig-node] Pods should run [NodeConformance] [sig-node, NodeConformance]"}, again)
	focus := regexp.MustCompile(Focus(again))
	assert.Regexp(t, focus, "E2eNode Suite [sig-node] Pods should run [NodeConformance]")
	assert.NotRegexp(t, focus, "E2eNode Suite [sig-node] Pods should run twice [NodeConformance]")
	assert.Empty(t, Outcomes(nil).PassedAndNot(through))
}
