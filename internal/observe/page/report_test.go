package page_test

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/base/dump"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/observe/page"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// evil is a name that would be markup if a page took it for that.
const evil = `</script><img src=x onerror=alert(1)>"'&`

// printer shows calls of the API about books, in which titles are secret.
func printer() *calls.Printer {
	secrets := dump.Secrets{Field: func(fd protoreflect.FieldDescriptor) bool { return fd.Name() == "title" }}
	return &calls.Printer{Schema: muxtest.Library, Text: secrets.Text(), Order: []string{"primary", "beta.io"}}
}

// recorded returns the calls of some recorded legs.
func recorded(t *testing.T, record func(*capture.Recorder)) []*calls.Call {
	t.Helper()
	rec := capture.NewRecorder(capture.Config{})
	f := rec.Follow(true)
	record(rec)
	a := calls.NewAssembler(muxtest.Library, nil)
	a.Copy = true
	var all []*calls.Call
	var ev capture.Event
	for f.TryNext(&ev) {
		if c, what := a.Add(&ev); what == calls.Done {
			all = append(all, c)
		}
	}
	return append(all, a.UnderWay()...)
}

// put is a call of Put whose id and title the proxy changed.
func put(t *testing.T, rec *capture.Recorder, err error) {
	ctx, front := rec.Begin(t.Context(), capture.LegInfo{Method: muxtest.Method("Put"), Client: true, Peer: capture.Peer{PID: 812, Name: evil},
		Metadata: metadata.Pairs("authorization", "Bearer hunter2", "x-name", evil)})
	front.Request(muxtest.Frame(t, "PutRequest", `book {id: "beta.io__7f" title: "hunter2"}`))
	_, back := rec.Begin(ctx, capture.LegInfo{Method: "/library.v0.Library/Put", Backend: "beta.io"})
	back.Request(muxtest.Frame(t, "PutRequest", `book {id: "7f" title: "hunter2"}`))
	if err == nil {
		back.Reply(muxtest.Frame(t, "Book", `id: "7f" title: "hunter2"`))
		front.Reply(muxtest.Frame(t, "Book", `id: "beta.io__7f" title: "hunter2"`))
	}
	back.End(err, nil)
	front.End(err, nil)
}

// written writes a page, and returns it with the data in it, by id.
func written(t *testing.T, info page.Info, all []*calls.Call) (html string, data map[string]string) {
	t.Helper()
	var out bytes.Buffer
	w := page.NewWriter(&out, printer())
	for _, c := range all {
		w.Add(c)
	}
	require.NoError(t, w.Close(info))
	data = map[string]string{}
	for _, found := range regexp.MustCompile(`<script type="text/plain" id="([^"]*)">([^<]*)</script>`).FindAllStringSubmatch(out.String(), -1) {
		packed, err := base64.StdEncoding.DecodeString(found[2])
		require.NoError(t, err)
		z, err := gzip.NewReader(bytes.NewReader(packed))
		require.NoError(t, err)
		text, err := io.ReadAll(z)
		require.NoError(t, err)
		data[found[1]] = string(text)
	}
	return out.String(), data
}

func TestNamesAreNeverMarkup(t *testing.T) {
	all := recorded(t, func(rec *capture.Recorder) { put(t, rec, status.Error(codes.Internal, evil)) })
	html, data := written(t, page.Info{Title: evil}, all)
	assert.NotContains(t, html, evil)
	assert.NotContains(t, html, "onerror=alert")
	assert.Contains(t, data["rows-0"], "onerror=alert", "they are in the data")
	assert.Equal(t, strings.Count(html, "<script"), strings.Count(html, "</script>"))
}

func TestSecretsStayOutOfThePage(t *testing.T) {
	all := recorded(t, func(rec *capture.Recorder) { put(t, rec, nil) })
	p := printer()
	p.Text.Unsafe = true // as with a capture that -unsafe-raw made
	d, _ := page.Render(p, all[0])
	html, data := written(t, page.Info{}, all)
	for _, text := range append([]string{html, string(d)}, fmt.Sprint(data)) {
		assert.NotContains(t, text, "hunter2")
	}
	assert.Contains(t, data["details-0"], dump.Redacted)
	assert.Contains(t, data["details-0"], "x-name")
}

func TestACallOpenedHasBothLegsAndWhatWasRewritten(t *testing.T) {
	all := recorded(t, func(rec *capture.Recorder) { put(t, rec, nil) })
	out, row := page.Render(printer(), all[0])
	assert.Equal(t, 3, row.Changes)
	var d struct {
		Changes []struct{ Backend, Way, Path, Before, After string }
		Legs    []struct {
			Backend, Method, Process string
			Requests                 []struct{ Lines [][]any }
		}
	}
	require.NoError(t, json.Unmarshal(out, &d))
	require.Len(t, d.Legs, 2)
	assert.Equal(t, "/library.v0.Library/Put", d.Legs[1].Method)
	assert.Contains(t, d.Legs[0].Process, "process 812")
	assert.Equal(t, []any{1.0, "id", `"beta.io__7f"`, 1.0}, d.Legs[0].Requests[0].Lines[1], "depth, name, value, rewritten")
	assert.Equal(t, []any{1.0, "id", `"7f"`, 1.0}, d.Legs[1].Requests[0].Lines[1])
	assert.Equal(t, []any{1.0, "title", dump.Redacted}, d.Legs[1].Requests[0].Lines[2])
	assert.Equal(t, "method", d.Changes[0].Way)
	assert.Equal(t, `"beta.io__7f"`, d.Changes[1].Before)
}

func TestRowsAreInPiecesThatThePageFinds(t *testing.T) {
	one := recorded(t, func(rec *capture.Recorder) { put(t, rec, nil) })
	var all []*calls.Call
	for range 5000 {
		all = append(all, one...)
	}
	_, data := written(t, page.Info{}, all)
	rows := 0
	for _, id := range []string{"rows-0", "rows-1"} {
		var b struct {
			S []string
			R [][]any
		}
		require.NoError(t, json.Unmarshal([]byte(data[id]), &b))
		for _, r := range b.R {
			assert.InDelta(t, rows, r[0], 0, "the key is the place")
			assert.Len(t, r[20], 5, "so many numbers of each leg")
			rows++
		}
	}
	assert.Equal(t, 5000, rows)
	for i := range 40 {
		var details struct{ Calls, Shared []any }
		require.NoError(t, json.Unmarshal([]byte(data[fmt.Sprintf("details-%d", i)]), &details))
		assert.Len(t, details.Calls, min(128, 5000-128*i))
		assert.Len(t, details.Shared, 2, "the changes and the longer message are the same in all")
	}
}

func TestACallWithoutAnEndIsLostInAFile(t *testing.T) {
	all := recorded(t, func(rec *capture.Recorder) {
		_, front := rec.Begin(t.Context(), capture.LegInfo{Method: muxtest.Method("Put"), Client: true})
		front.Request(muxtest.Frame(t, "PutRequest", ""))
	})
	_, data := written(t, page.Info{}, all)
	var b struct{ R [][]any }
	require.NoError(t, json.Unmarshal([]byte(data["rows-0"]), &b))
	assert.InDelta(t, -2, b.R[0][7], 0)
}

func TestLongListsAreCut(t *testing.T) {
	text := strings.Repeat(`books {id: "7f"} `, 5000)
	all := recorded(t, func(rec *capture.Recorder) {
		_, front := rec.Begin(t.Context(), capture.LegInfo{Method: muxtest.Method("List"), Client: true})
		front.Request(muxtest.Frame(t, "ListRequest", ""))
		front.Reply(muxtest.Frame(t, "ListResponse", text))
		front.End(nil, nil)
	})
	out, _ := page.Render(printer(), all[0])
	assert.Less(t, len(out), 32<<10)
	assert.Contains(t, string(out), `"more":9600`)
}

func TestAnErrorOfTheFileIsNotLost(t *testing.T) {
	full := errors.New("no space left on device")
	w := page.NewWriter(failing{full}, printer())
	w.Add(recorded(t, func(rec *capture.Recorder) { put(t, rec, nil) })[0])
	assert.ErrorIs(t, w.Close(page.Info{}), full)
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestThePolicyAllowsOnlyThePagesOwnScript(t *testing.T) {
	html, _ := written(t, page.Info{}, nil)
	policy := regexp.MustCompile(`http-equiv="Content-Security-Policy" content="([^"]*)"`).FindStringSubmatch(html)[1]
	assert.Contains(t, policy, "default-src 'none'")
	assert.NotContains(t, policy, "unsafe")
	assert.NotContains(t, policy, "connect-src", "a file makes no request")
	assert.NotRegexp(t, `(src|href)="?https?:`, html)
	live, header := page.Live()
	assert.Contains(t, header, "connect-src 'self'")
	assert.Contains(t, header, "frame-ancestors 'none'")
	assert.NotContains(t, string(live), "text/plain")
}

func Example() {
	var out bytes.Buffer
	w := page.NewWriter(&out, &calls.Printer{Schema: codec.NewSchema()})
	w.Add(&calls.Call{ID: 1, Method: "/runtime.v1.RuntimeService/Version", Began: time.Unix(0, 0), Ended: true})
	fmt.Println(w.Close(page.Info{Title: "calls.jsonl"}), strings.Contains(out.String(), "<!doctype html>"))
	// Output: <nil> true
}
