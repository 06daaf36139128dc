package server

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/criproxy/criproxy/internal/observe/capture"
)

// why accused kubelet of a time in which criproxy itself did not run (issue 42).
func TestCriproxyRecordsThatItStoodStill(t *testing.T) {
	began := time.Date(2026, 11, 28, 9, 0, 0, 0, time.UTC)
	beats := make(chan time.Time)
	seconds := []int{0, 2, 5, 20, 22} // at which it looks at the clock
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	now := func() time.Time {
		s := seconds[0]
		seconds = seconds[1:]
		return began.Add(time.Duration(s) * time.Second)
	}
	var recorded []capture.Change
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		watchItself(ctx, beats, now, func(c capture.Change) { recorded = append(recorded, c) })
	}()
	for range 4 {
		select {
		case beats <- began:
		case <-time.After(10 * time.Second):
			t.Fatal("it does not look")
		}
	}
	stop()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Fatal("it does not end")
	}
	assert.Equal(t, []capture.Change{{Time: began.Add(20 * time.Second), What: capture.StoodStill, Since: began.Add(5 * time.Second),
		Why: "it did not run for 15s: its process was stopped, or got no time of a processor"}}, recorded)
}
