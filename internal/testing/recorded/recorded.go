// Package recorded lets tests and benchmarks use a recording as often as they need it.
package recorded

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/observe/capture"
)

// Read returns the header and all events of a recording.
func Read(t testing.TB, file string) (capture.FileHeader, []capture.Event) {
	t.Helper()
	r, err := capture.Open(file)
	require.NoError(t, err)
	defer r.Close()
	var all []capture.Event
	for {
		var ev capture.Event
		if err := r.Next(&ev); errors.Is(err, io.EOF) {
			return *r.Header(), all
		} else {
			require.NoError(t, err)
		}
		all = append(all, ev)
	}
}

// Span returns how long a round of events lasts, with a pause of a second after it.
func Span(all []capture.Event) time.Duration {
	return all[len(all)-1].Time.Sub(all[0].Time) + time.Second
}

// Round calls take with copies of all events, as if they had happened again: n rounds later, with numbers of their own.
func Round(all []capture.Event, n int, take func(*capture.Event)) {
	last, later := &all[len(all)-1], time.Duration(n)*Span(all)
	for _, ev := range all {
		ev.Seq += uint64(n) * last.Seq
		ev.Call += uint64(n) * (last.Call + 1000)
		ev.Mono += later
		ev.Time = ev.Time.Add(later)
		take(&ev)
	}
}

// UntilNow calls take with as many rounds of events as fill a time that ends now.
func UntilNow(all []capture.Event, reach time.Duration, take func(*capture.Event)) {
	span := Span(all)
	rounds := int(reach/span) + 1
	shift := time.Since(all[0].Time) - time.Duration(rounds)*span
	for n := range rounds {
		Round(all, n, func(ev *capture.Event) {
			ev.Time = ev.Time.Add(shift)
			take(ev)
		})
	}
}
