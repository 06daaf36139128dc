package capture_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/criproxy/criproxy/internal/observe/capture"
)

func failure() *wrapperspb.StringValue { return wrapperspb.String("detail") }

// normal makes events of different sources comparable.
func normal(events []capture.Event) []string {
	var all []string
	for _, ev := range events {
		ev.Time = ev.Time.UTC().Round(0)
		if len(ev.Payload) == 0 {
			ev.Payload = nil
		}
		if len(ev.Details) == 0 {
			ev.Details = nil
		}
		if len(ev.Metadata) == 0 {
			ev.Metadata = nil
		}
		if len(ev.Payload) > 200 {
			ev.Payload = append(ev.Payload[:200:200], fmt.Sprintf("... %d", len(ev.Payload))...)
		}
		all = append(all, fmt.Sprintf("%+v", ev))
	}
	return all
}

func events(t testing.TB) []capture.Event {
	t.Helper()
	rec := capture.NewRecorder(capture.Config{})
	session(t, rec)
	all := recorded(t, rec)
	all = append(all, capture.Event{Kind: capture.Missed, Seq: 1000, Missed: 12, Time: time.Unix(1700000001, 3)})
	pods := 9
	all = append(all, capture.Event{Kind: capture.Changed, Seq: 1001, Time: time.Unix(1700000002, 4), Backend: "beta.io", Change: &capture.Change{
		Time: time.Unix(1700000002, 4).UTC(), What: capture.Gone, Backend: "beta.io", Why: `it said "no" = never`, Was: capture.Up,
		Since: time.Unix(1600000000, 5).UTC(), Pods: &pods, PID: 12,
	}})
	all[0].Peer = capture.Peer{PID: 12, UID: 1000, Name: `a "name`}
	all[1].Truncated, all[1].Redacted, all[1].Size = true, true, 9999
	all[0].Again = true
	return all
}

func TestEachFormatKeepsEverything(t *testing.T) {
	all := events(t)
	require.Greater(t, len(all), 30)
	for _, f := range capture.Formats {
		t.Run(string(f), func(t *testing.T) {
			h, got := decode(t, encode(t, f, all))
			assert.Equal(t, header, h)
			assert.Equal(t, normal(all), normal(got))
		})
	}
}

func TestFilesOfOneFormatCanBeJoined(t *testing.T) {
	all := events(t)
	for _, f := range capture.Formats {
		one := encode(t, f, all)
		_, got := decode(t, append(one[:len(one):len(one)], one...))
		assert.Equal(t, append(normal(all), normal(all)...), normal(got), f)
	}
}

func TestAFileOfAnotherFormatIsRefused(t *testing.T) {
	for name, file := range map[string]string{
		"nothing": "", "text": "hello there, this is text\n", "other JSON": "{\"a\":1}\n", "zeros": strings.Repeat("\x00", 100),
		"other pcapng": "\x0a\x0d\x0d\x0a\x1c\x00\x00\x00\x4d\x3c\x2b\x1a\x01\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff\x1c\x00\x00\x00",
		"short":        "\x00\x00\x10\x00abc",
	} {
		_, err := capture.NewReader(strings.NewReader(file))
		require.Error(t, err, name)
		if name != "nothing" {
			assert.Contains(t, err.Error(), "is not a capture that criproxy can read", name)
		}
	}
	_, err := capture.NewReader(strings.NewReader(`{"kind":"file","v":2,"created":"2026-01-01T00:00:00Z"}` + "\n"))
	require.ErrorContains(t, err, "version 2")
}

func TestAnImpossibleEventIsRefused(t *testing.T) {
	refused := func(file []byte) {
		t.Helper()
		r, err := capture.NewReader(bytes.NewReader(file))
		require.NoError(t, err)
		assert.ErrorContains(t, r.Next(&capture.Event{}), "event 7 of the capture")
	}
	for _, format := range capture.Formats {
		refused(encode(t, format, []capture.Event{{Kind: capture.Start, Seq: 7, Call: 1, Leg: 1 << 16, Method: "/a/b"}}))
	}
	head := encode(t, capture.JSONL, nil)
	refused(append(head, `{"kind":"start","seq":7,"mono_ns":-1}`+"\n"...))
	refused(append(head, `{"kind":"reply","seq":7,"size":-1}`+"\n"...))
}

func TestATruncatedFileIsReadToItsEnd(t *testing.T) {
	all := events(t)
	for _, f := range capture.Formats {
		file := encode(t, f, all)
		r, err := capture.NewReader(bytes.NewReader(file[:len(file)/2]))
		require.NoError(t, err)
		n := 0
		for {
			var ev capture.Event
			if err = r.Next(&ev); err != nil {
				break
			}
			n++
		}
		assert.Positive(t, n)
		assert.ErrorContains(t, err, "unexpected EOF", f)
	}
}

// FuzzReader checks that the Reader reads or refuses any file, and that events survive being written
// in each format and read again.
func FuzzReader(f *testing.F) {
	all := events(f)[:12]
	for _, format := range capture.Formats {
		f.Add(encode(f, format, all))
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		if len(file) > 1<<16 {
			t.Skip("larger inputs find nothing new, slowly")
		}
		r, err := capture.NewReader(bytes.NewReader(file))
		if err != nil {
			return
		}
		var read []capture.Event
		for {
			var ev capture.Event
			if r.Next(&ev) != nil {
				break
			}
			read = append(read, ev)
		}
		for _, format := range capture.Formats {
			_, once := decode(t, encode(t, format, read))
			require.Len(t, once, len(read), format)
			_, twice := decode(t, encode(t, format, once))
			require.Equal(t, normal(once), normal(twice), format)
		}
	})
}
