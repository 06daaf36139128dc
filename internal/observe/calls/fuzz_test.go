package calls_test

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/base/dump"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// FuzzShow checks that a capture of unknown origin can be shown in each way: nothing panics, and no
// control character reaches the terminal.
func FuzzShow(f *testing.F) {
	for _, format := range capture.Formats {
		var file bytes.Buffer
		all := conversation(f)
		header := capture.FileHeader{Version: capture.Version, Program: "p\x1b[2J", Created: clock}
		e := capture.NewEncoder(format, nil)
		file.Write(e.Begin(nil, &header))
		for i := range all {
			file.Write(e.Append(nil, &all[i]))
		}
		f.Add(file.Bytes(), "Put", "OK")
	}
	f.Fuzz(func(t *testing.T, file []byte, method, status string) {
		r, err := capture.NewReader(bytes.NewReader(file))
		if err != nil {
			return
		}
		filter := calls.Filter{Method: method, Status: status}
		if filter.Check() != nil {
			filter = calls.Filter{}
		}
		var out bytes.Buffer
		p := &calls.Printer{Out: &out, Schema: muxtest.Library, Text: dump.Text{MaxValue: 50}, Full: true, Changes: true, Order: order}
		programs := &calls.Printer{Out: io.Discard, Schema: muxtest.Library, JSON: true, Full: true, Changes: true, Order: order}
		a := calls.NewAssembler(muxtest.Library, names{})
		var stats calls.Stats
		var all []*calls.Call
		show := func(c *calls.Call) {
			filter.Match(c)
			stats.Add(c)
			p.Print(c)
			programs.Print(c)
		}
		for range 1000 {
			var ev capture.Event
			if r.Next(&ev) != nil {
				break
			}
			if c, what := a.Add(&ev); what == calls.Done {
				show(c)
				all = append(all, c)
			}
		}
		for _, c := range a.UnderWay() {
			show(c)
		}
		require.NoError(t, stats.Print(&out))
		_ = calls.Sequence(&out, all) // its error may be anything
		require.NoError(t, p.Err())
		require.NoError(t, programs.Err())
		bad := strings.IndexFunc(out.String(), func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' })
		assert.Negative(t, bad, "%q", out.String()[max(0, bad-50):min(out.Len(), max(0, bad)+50)])
	})
}
