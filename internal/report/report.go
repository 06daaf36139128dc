package report

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"time"

	"github.com/criproxy/criproxy/internal/capture"
	"github.com/criproxy/criproxy/internal/inspect"
)

// Info says what a page is about.
type Info struct {
	Title    string                  `json:"title"` // the file's name, or the admin socket
	Program  string                  `json:"program,omitempty"`
	Created  time.Time               `json:"created,omitzero"` // the recording
	Listen   string                  `json:"listen,omitempty"`
	Backends []capture.HeaderBackend `json:"backends,omitempty"`
	Calls    int                     `json:"calls"`
	Missed   uint64                  `json:"missed,omitempty"` // events that are not in the recording
	Cut      bool                    `json:"cut,omitempty"`    // the recording ends in the middle of an event
	Filter   string                  `json:"filter,omitempty"` // what was asked for when the page was made
	Live     bool                    `json:"live,omitempty"`
}

// Of fills in what the header of a recording says.
func (i *Info) Of(h *capture.FileHeader) {
	i.Program, i.Created, i.Listen, i.Backends = h.Program, h.Created, h.Listen, h.Backends
}

// How many calls stand in one piece of compressed data. The page opens the pieces of rows when
// it begins, and one of details when a call is opened. It reckons with perDetails.
const (
	perRows    = 4096
	perDetails = 128
)

// A Writer writes a page with calls. It must not be used by two goroutines at once.
type Writer struct {
	out     io.Writer
	printer *inspect.Printer // see Render
	calls   int
	rows    Batch
	details []json.RawMessage
	shared  []json.RawMessage // what the calls of details have in common
	places  map[string]int    // :: part of a call → its place in shared
	err     error
}

// NewWriter begins a page. It uses printer as [Render] does. The caller closes out after Close.
func NewWriter(out io.Writer, printer *inspect.Printer) *Writer {
	w := &Writer{out: out, printer: printer}
	w.write(pageBegin(filePolicy))
	return w
}

// Add adds a call that has ended or, at the end of the recording, is still under way.
func (w *Writer) Add(c *inspect.Call) {
	d, row := render(*w.printer, c, w.share)
	row.Key, row.Lost = uint64(w.calls), !c.Ended
	w.rows.Add(row)
	w.details = append(w.details, d)
	w.calls++
	if w.calls%perDetails == 0 {
		w.flushDetails()
	}
	if w.rows.Len() == perRows {
		w.flushRows()
	}
}

// Close ends the page. It returns the first error of all that was written.
func (w *Writer) Close(info Info) error {
	w.flushDetails()
	w.flushRows()
	info.Calls = w.calls
	data, err := json.Marshal(info)
	if err != nil {
		return err
	}
	w.block("info", data)
	w.write(pageEnd())
	return w.err
}

// minShared is what is worth a place of its own, in bytes.
const minShared = 64

// share returns the number of a part of a call, by which the page finds it.
func (w *Writer) share(part json.RawMessage) json.RawMessage {
	if len(part) < minShared {
		return part
	}
	at, ok := w.places[string(part)]
	if !ok {
		if w.places == nil {
			w.places = map[string]int{}
		}
		at = len(w.shared)
		w.places[string(part)] = at
		w.shared = append(w.shared, part)
	}
	return strconv.AppendInt(nil, int64(at), 10)
}

// flushDetails writes {"calls": details, "shared": what they have in common}.
func (w *Writer) flushDetails() {
	if len(w.details) == 0 {
		return
	}
	w.block("details-"+strconv.Itoa((w.calls-1)/perDetails), marshal(struct {
		Calls  []json.RawMessage `json:"calls"`
		Shared []json.RawMessage `json:"shared"`
	}{w.details, append([]json.RawMessage{}, w.shared...)}))
	w.details, w.shared, w.places = w.details[:0], w.shared[:0], nil
}

func (w *Writer) flushRows() {
	if w.rows.Len() > 0 {
		w.block("rows-"+strconv.Itoa((w.calls-1)/perRows), w.rows.JSON())
		w.rows = Batch{}
	}
}

// block writes data as a script that is none: base64 of gzip, so that nothing in it can be taken
// for HTML.
func (w *Writer) block(id string, data []byte) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, err := z.Write(data)
	w.fail(errors.Join(err, z.Close()))
	b := append([]byte(`<script type="text/plain" id="`), id...)
	b = append(b, `">`...)
	b = base64.StdEncoding.AppendEncode(b, packed.Bytes())
	w.write(append(b, "</script>\n"...))
}

func (w *Writer) write(b []byte) {
	if w.err == nil {
		_, err := w.out.Write(b)
		w.fail(err)
	}
}

func (w *Writer) fail(err error) {
	if w.err == nil {
		w.err = err
	}
}
