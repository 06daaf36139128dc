package main

import (
	"time"

	"github.com/criproxy/criproxy/internal/drift"
	"github.com/criproxy/criproxy/internal/hook"
	"github.com/criproxy/criproxy/internal/lastknown"
)

// proxyState is how a proxy is doing, as far as it knows without asking anybody.
type proxyState struct {
	healthState
	Listeners []listenerHealth // the main one first
	Config    configState
	Capture   *captureState // nil if nothing is recorded
	Drift     []drift.Finding
	Plugins   *hook.State // nil if plugins are turned off
}

// healthState is whether a proxy answers calls.
type healthState struct {
	Ready       bool            // clients can connect, and the primary is up
	Stopping    bool            // new calls are no longer taken
	Unreachable error           // why no client can connect to the main socket; nil if clients can
	Backends    []backendHealth // the primary first
}

// backendHealth is how a runtime is doing.
type backendHealth struct {
	Name       string            // "primary" if it has none
	State      string            // "up", "slow", "gone", or "connecting": not yet known
	Err        error             // why it is not up
	Age        *time.Duration    // of what lists show of it; nil if nothing is remembered of it
	Remembered map[string]uint64 // :: method → answers from memory
}

// listenerHealth is how a socket is doing.
type listenerHealth struct {
	Path    string
	Lost    int64 // how often its file was gone
	Err     error // why no client can connect; nil if clients can
	Refused int64 // calls, by the access list
}

// captureState is how the flight recorder and the file of -capture are doing.
type captureState struct {
	Recorded, Missed uint64 // events
	File             bool   // calls are written to a file
	Failing          bool   // it cannot be written now
	Failures         int64  // how often it could not be written any more
}

// isUp reports whether the backend takes calls.
func (b *backendHealth) isUp() bool { return takesCalls(b.State) }

// takesCalls reports whether a backend in this state takes calls.
func takesCalls(state string) bool {
	return state == lastknown.Up.String() || state == lastknown.Slow.String()
}
