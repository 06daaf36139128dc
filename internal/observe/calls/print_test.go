package calls_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// shown prints the conversation, call by call.
func shown(t *testing.T, p calls.Printer) []byte {
	t.Helper()
	var out bytes.Buffer
	p.Out, p.Schema, p.Order = &out, muxtest.Library, order
	a := calls.NewAssembler(muxtest.Library, names{})
	for _, ev := range conversation(t) {
		switch c, what := a.Add(&ev); what {
		case calls.Streamed:
			p.Streamed(c)
		case calls.Done:
			p.Print(c)
		}
	}
	for _, c := range a.UnderWay() {
		p.Print(c)
	}
	require.NoError(t, p.Err())
	return out.Bytes()
}

func TestALineForEachCall(t *testing.T) { golden(t, "lines", shown(t, calls.Printer{})) }

func TestColumnsStandBelowTheirTitles(t *testing.T) {
	for _, backends := range [][]string{nil, {"primary", "beta.io"}, {"primary", "virtlet.cloud", "kata.io"}} {
		var out bytes.Buffer
		p := &calls.Printer{Out: &out, Schema: muxtest.Library, Order: backends}
		c := &calls.Call{Ended: true, About: calls.About{Pod: "web"}}
		for i, b := range backends {
			c.Legs = append(c.Legs, &calls.Leg{Number: i + 1, Backend: b})
		}
		p.Header()
		p.Print(c)
		title, line, _ := strings.Cut(out.String(), "\n")
		assert.Equal(t, strings.Index(title, "ABOUT"), strings.Index(line, "web"), out.String())
	}
}

func TestACallIsShownInFull(t *testing.T) { golden(t, "full", shown(t, calls.Printer{Full: true})) }

func TestChangesOfTheProxyAreShown(t *testing.T) {
	golden(t, "diff", shown(t, calls.Printer{Changes: true}))
}

func TestJSONIsOneLineACall(t *testing.T) {
	out := append(shown(t, calls.Printer{JSON: true, Full: true}), shown(t, calls.Printer{JSON: true, Changes: true})...)
	for line := range strings.Lines(string(out)) {
		assert.True(t, json.Valid([]byte(line)), line)
	}
	golden(t, "json", out)
}

func TestASequenceDiagram(t *testing.T) {
	ended, underWay := assembled(t)
	var out bytes.Buffer
	require.NoError(t, calls.Sequence(&out, append(ended, underWay...)))
	golden(t, "sequence", out.Bytes())
}

func TestATableByMethod(t *testing.T) {
	ended, _ := assembled(t)
	var s calls.Stats
	for _, c := range ended {
		s.Add(c)
		s.Add(c)
	}
	var out bytes.Buffer
	require.NoError(t, s.Print(&out))
	golden(t, "stats", out.Bytes())
}

func TestQuantilesAreByNearestRank(t *testing.T) {
	var s calls.Stats
	for i := range 100 {
		s.Add(&calls.Call{Method: "/a/B", Took: time.Duration(100-i) * time.Millisecond})
	}
	s.Add(&calls.Call{Method: "/a/C", Took: time.Second, Code: codes.Aborted})
	assert.Equal(t, []time.Duration{50 * time.Millisecond, 99 * time.Millisecond}, []time.Duration{s.Methods()[0].P50, s.Methods()[0].P99})
	assert.Equal(t, []time.Duration{time.Second, time.Second}, []time.Duration{s.Methods()[1].P50, s.Methods()[1].P99})
	assert.Equal(t, 1, s.Methods()[1].Errors)
}

func TestControlCharactersDoNotReachTheTerminal(t *testing.T) {
	var out bytes.Buffer
	p := &calls.Printer{Out: &out, Schema: muxtest.Library}
	evil := "\x1b]0;mine\x07\u009b31m\nnext"
	c := &calls.Call{Method: "/a/" + evil, Peer: capture.Peer{PID: 1, Name: evil}, Message: evil, Code: codes.Aborted, Ended: true,
		About: calls.About{Pod: evil}, Legs: []*calls.Leg{{Method: evil, Message: evil, Ended: true, Code: codes.Aborted, Metadata: metadata.MD{"key": {evil}},
			Requests: calls.Messages{Kept: []calls.Message{{Payload: muxtest.Bytes("Page", "text: '\\033]0;'").Bytes()}}}}}}
	p.Full, p.Changes = true, true
	p.Print(c)
	require.NoError(t, calls.Sequence(&out, []*calls.Call{c}))
	assert.NotContains(t, out.String(), "\x1b")
	assert.NotContains(t, out.String(), "\x07")
	assert.NotContains(t, out.String(), "\u009b")
	assert.NotContains(t, out.String(), "\nnext")
}

// view and tail -past printed titles above nothing.
func TestLateTitlesComeWithTheFirstLine(t *testing.T) {
	ended, _ := assembled(t)
	var out bytes.Buffer
	p := &calls.Printer{Out: &out, Schema: muxtest.Library}
	p.LateHeader()
	assert.Empty(t, out.String())
	p.Print(ended[0])
	p.Print(ended[0])
	assert.Equal(t, []string{"TIME", "CLIENT", "METHOD"}, strings.Fields(out.String())[:3])
	assert.Equal(t, 1, strings.Count(out.String(), "TIME"))
}

func TestColoursOnlyIfAskedFor(t *testing.T) {
	ended, _ := assembled(t)
	for _, colour := range []bool{false, true} {
		var out bytes.Buffer
		p := &calls.Printer{Out: &out, Schema: muxtest.Library, Colour: colour, Full: true, Changes: true, Order: order}
		for _, c := range ended {
			p.Header()
			p.Print(c)
		}
		assert.Equal(t, colour, strings.Contains(out.String(), "\x1b["))
	}
}

func TestAFailingWriterIsAnError(t *testing.T) {
	ended, _ := assembled(t)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, r.Close())
	defer w.Close()
	p := &calls.Printer{Out: w, Schema: muxtest.Library}
	p.Print(ended[0])
	assert.Error(t, p.Err())
	assert.False(t, errors.Is(p.Err(), os.ErrClosed))
}

func TestACallEndedByItsClientHasNotFailed(t *testing.T) {
	rec := capture.NewRecorder(capture.Config{})
	ctx, leave := context.WithCancel(t.Context())
	_, front := rec.Begin(ctx, capture.LegInfo{Method: muxtest.Method("Stream"), Client: true})
	leave()
	front.End(status.FromContextError(ctx.Err()).Err(), nil)
	var line, table, diagram bytes.Buffer
	var stats calls.Stats
	a := calls.NewAssembler(muxtest.Library, nil)
	var ev capture.Event
	var c *calls.Call
	for f := rec.Follow(true); f.TryNext(&ev); {
		c, _ = a.Add(&ev)
	}
	(&calls.Printer{Out: &line, Schema: muxtest.Library, Colour: true}).Print(c)
	assert.Contains(t, line.String(), "Canceled: the client ended the call")
	assert.NotContains(t, line.String(), "\x1b[31m", "it is not red")
	stats.Add(c)
	require.NoError(t, stats.Print(&table))
	assert.Zero(t, stats.Methods()[0].Errors)
	require.NoError(t, calls.Sequence(&diagram, []*calls.Call{c}))
	assert.NotContains(t, diagram.String(), "--x")
	assert.Contains(t, diagram.String(), "Canceled")
}

// Errors are chains: what was tried comes first, and the cause last.
func TestALongErrorKeepsItsEnd(t *testing.T) {
	long := "failed to \x1b[31mdestroy network:\n" + strings.Repeat("é and so on ", 50) + "address already in use"
	short := calls.Cut(long, 80)
	assert.Regexp(t, `^failed to \[31mdestroy network: .* \.\.\. .*address already in use$`, short)
	assert.LessOrEqual(t, utf8.RuneCountInString(short), 85)
	assert.Equal(t, "accepts the ... for 10s", calls.Cut("accepts the connections of clients and has answered nothing for 10s", 25), "words stay whole")
	assert.Equal(t, "short", calls.Cut("short", 60))
}
