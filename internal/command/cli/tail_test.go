package cli

import (
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/observe/telemetry"
	"github.com/criproxy/criproxy/internal/testing/recorded"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// served returns the path of an admin socket with these answers.
func served(t *testing.T, answer http.HandlerFunc) string {
	path := filepath.Join(testkit.SocketDir(t), "a.admin.sock")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	server := &http.Server{Handler: answer}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	return path
}

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
	path := served(t, answer)
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

// kubelets returns a recording of so many events of a real kubelet, and these.
func kubelets(t *testing.T, n int) (*telemetry.Recording, []capture.Event) {
	_, all := recorded.Read(t, "../../server/testdata/node100.blocks")
	rec := capture.NewRecorder(capture.Config{Bytes: 4 << 20, Schema: criadapter.Schema()})
	for i := range all[:n] {
		rec.Add(&all[i])
	}
	left, _ := rec.Snapshot(&capture.FileHeader{Version: capture.Version})
	d, err := criadapter.Config(criadapter.Options{})
	require.NoError(t, err)
	r, err := telemetry.NewRecording(&config.Config{}, d, nil)
	require.NoError(t, err)
	require.NoError(t, r.Restore(left))
	return r, all[:n]
}

// tail -since gets little of what came before. What it shows is the same as if it got all.
func TestTheCallsSinceATimeAreTheSameWithLittleOfWhatCameBefore(t *testing.T) {
	r, all := kubelets(t, 20_000)
	var since time.Time // the middle of the longest pause between two calls
	pause := time.Duration(0)
	before := all[len(all)/2].Time
	for _, ev := range all[len(all)/2:] {
		if ev.Kind == capture.Start && ev.Leg == 0 {
			if took := ev.Time.Sub(before); took > pause {
				pause, since = took, before.Add(took/2)
			}
			before = ev.Time
		}
	}
	var sent atomic.Int64
	var shows atomic.Bool
	path := served(t, func(w http.ResponseWriter, request *http.Request) {
		if !shows.Load() {
			q := request.URL.Query()
			assert.True(t, q.Has("shown"))
			q.Del("shown")
			q.Del("large")
			q.Del("blocks")
			request.URL.RawQuery = q.Encode()
		}
		r.ServeEvents(countedAnswer{w, &sent}, request)
	})
	tail := func(flags []string) (string, int64) {
		var out strings.Builder
		before := sent.Load()
		require.NoError(t, Tail(t.Context(), append(flags, "-since", time.Since(since).String(), "-admin", path), &out, io.Discard))
		return out.String(), sent.Load() - before
	}
	for _, flags := range [][]string{nil, {"-o", "json"}, {"-pod", "pod05*"}} {
		shows.Store(false)
		want, whole := tail(flags)
		shows.Store(true)
		got, part := tail(flags)
		assert.Equal(t, want, got, "%v", flags)
		assert.Greater(t, strings.Count(got, "\n"), 10)
		assert.Less(t, part, whole*3/4)
	}
}

// countedAnswer counts what an answer sends.
type countedAnswer struct {
	http.ResponseWriter
	sent *atomic.Int64
}

func (c countedAnswer) Write(b []byte) (int, error) {
	c.sent.Add(int64(len(b)))
	return c.ResponseWriter.Write(b)
}

func (c countedAnswer) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// tail -last read all of the recording. What it shows is the same as if it did.
func TestTheLatestCallsAreTheEndOfAllCalls(t *testing.T) {
	r, _ := kubelets(t, 6_000)
	var sent atomic.Int64
	path := served(t, func(w http.ResponseWriter, request *http.Request) { r.ServeEvents(countedAnswer{w, &sent}, request) })
	const n = 50
	tail := func(args ...string) (lines []string, bytes int64) {
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
		defer cancel()
		before := sent.Load()
		out := writerFunc(func(b []byte) (int, error) {
			for line := range strings.Lines(string(b)) {
				lines = append(lines, line)
			}
			if len(lines) > n && slices.Contains(args, "-follow") {
				cancel()
			}
			return len(b), nil
		})
		require.NoError(t, Tail(ctx, append(args, "-admin", path), out, io.Discard))
		return lines, sent.Load() - before
	}
	for _, flags := range [][]string{nil, {"-method", "ContainerStatus"}, {"-pod", "*"}, {"-own"}, {"-slower", "10ms"}, {"-status", "!OK"}} {
		whole, much := tail(append(flags, "-past")...)
		latest, little := tail(append(flags, "-last", strconv.Itoa(n))...)
		want := whole[max(len(whole)-n, min(1, len(whole))):] // without the titles
		assert.Equal(t, want, latest[min(1, len(latest)):], "%v", flags)
		if flags == nil {
			assert.Less(t, 2*little, much)
			followed, _ := tail("-follow", "-last", strconv.Itoa(n))
			assert.Equal(t, want, followed[1:n+1])
		}
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
