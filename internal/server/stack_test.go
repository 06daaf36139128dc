package server

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/observe/telemetry"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// After a restart the log gave another reason than the event, and a time of another form.
func TestTheLogOfAnOutageThatGoesOnHasTheReasonOfItsEvent(t *testing.T) {
	const event, later = "accepts connections, and has answered nothing for 10s", "accepts connections, and has answered nothing for 5s"
	b := &stack{cfg: config.Backend{Name: "goeson.io"}, cached: true, backend: backend.Open("goeson.io", backend.File{}), changes: telemetry.NewChanges(&telemetry.Recording{}, "")}
	b.changes.Became(capture.Change{Backend: "goeson.io", What: capture.Gone, Time: at(1), Why: event})
	b.changed(backend.State{Condition: backend.Gone, Since: at(1), Err: errors.New(later), First: true})
	since := at(1).Local().Format("2006-01-02 15:04:05")
	assert.NotEmpty(t, testkit.LogLines(`"Backend is still gone, as before this process"`, `"goeson.io"`, event, `"`+since+`"`))
}

// A reload stages a stack that goes on with a condition, which may end before the stack is in use. Then the outage of the
// meantime ended in the events when it began, and in the log when it ended.
func TestAnOutageDuringAReloadEndsWhenTheNewStackIsAnswered(t *testing.T) {
	b := &stack{cfg: config.Backend{Name: "staged.io"}, cached: true, backend: backend.Open("staged.io", backend.File{}), changes: telemetry.NewChanges(&telemetry.Recording{}, "")}
	b.changes.Became(capture.Change{Backend: "staged.io", What: capture.Up, Time: at(1)})
	b.changes.Became(capture.Change{Backend: "staged.io", What: capture.Gone, Time: at(2)})
	b.changed(backend.State{Condition: backend.Up, Since: at(1), First: true})
	assert.Equal(t, capture.Up, b.condition().State)
	assert.True(t, b.condition().Since.After(at(2)), "%s", b.condition().Since)
}
