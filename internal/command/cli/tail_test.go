package cli

import (
	"context"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// tail lacked a change 20 ms before a crash, which criproxy events -follow showed.
func TestTailShowsTheChangeBeforeACrash(t *testing.T) {
	begins := time.Now().UTC()
	change := func(after time.Duration, what, backend string) capture.Change {
		return capture.Change{Time: begins.Add(after), What: what, Backend: backend}
	}
	old, up := change(-time.Second, capture.Slow, "a.io"), change(time.Second, capture.Up, "a.io")
	gone, serving := change(2*time.Second, capture.Gone, "a.io"), change(3*time.Second, capture.Serving, "")
	var asked atomic.Int32
	answer := func(w http.ResponseWriter, r *http.Request) {
		all, inherited := []capture.Change{old, up}, "0"
		second := asked.Add(1) == 2
		if second {
			all, inherited = []capture.Change{old, up, gone, serving}, "3"
		}
		w.Header().Set(admin.RecordedHeader, "1")
		w.Header().Set(admin.InheritedHeader, inherited)
		enc := capture.NewEncoder(capture.Binlog, codec.NewSchema())
		data := enc.Begin(nil, &capture.FileHeader{Version: capture.Version, Created: begins, Changes: true})
		for i, c := range all {
			data = enc.Append(data, &capture.Event{Kind: capture.Changed, Seq: uint64(i + 1), Time: c.Time, Backend: c.Backend, Change: &c})
		}
		if !second { // the file that the process left lacked this, and had no change of this number
			data = enc.Append(data, &capture.Event{Kind: capture.Start, Seq: 3, Time: begins, Call: 1, Leg: 1, Own: true, Method: "/runtime.v1.RuntimeService/Version", Backend: "a.io"})
		}
		_, _ = w.Write(data) // fails if tail has ended
		if second {
			_ = http.NewResponseController(w).Flush() // likewise
			<-r.Context().Done()
		}
	}
	path := filepath.Join(testkit.SocketDir(t), "a.admin.sock")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	server := &http.Server{Handler: http.HandlerFunc(answer)}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })

	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	var out strings.Builder
	until := writerFunc(func(b []byte) (int, error) {
		if out.Write(b); strings.Contains(out.String(), "criproxy serves") {
			cancel()
		}
		return len(b), nil
	})
	require.NoError(t, Tail(ctx, []string{"-admin", path}, until, until))
	var shown []string
	for line := range strings.Lines(out.String()) {
		if _, text, found := strings.Cut(line, "-- "); found {
			shown = append(shown, strings.TrimSpace(text))
		}
	}
	assert.Equal(t, []string{"a.io is up (its condition before is not known)", "a.io is gone", "criproxy serves"}, shown, "%s", &out)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
