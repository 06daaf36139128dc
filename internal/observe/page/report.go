package page

import (
	"bufio"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// Info says what a page is about.
type Info struct {
	Title    string                  `json:"title"` // the file's name, or the admin socket
	Program  string                  `json:"program,omitempty"`
	Listen   string                  `json:"listen,omitempty"`
	Backends []capture.HeaderBackend `json:"backends,omitempty"`
	Methods  []string                `json:"methods,omitempty"` // of the API: a filter that matches none is a mistake
	Cut      bool                    `json:"cut,omitempty"`     // the recording ends in the middle of an event
	Filter   string                  `json:"filter,omitempty"`  // the flags that selected the calls of the page
	From     float64                 `json:"from,omitempty"`    // of a live page: the time of the first event that was read
	Older    bool                    `json:"older,omitempty"`   // likewise: there were events before that
	Files    map[string]string       `json:"files,omitempty"`   // :: node → its recording, if there are several nodes
}

// Of fills in the fields that the header of a recording has.
func (i *Info) Of(h *capture.FileHeader) {
	i.Program, i.Listen, i.Backends = h.Program, h.Listen, h.Backends
}

// Add adds the recording of a node, in a file, of which h is the header.
func (i *Info) Add(node, file string, h *capture.FileHeader) {
	if i.Files == nil {
		i.Files = map[string]string{}
	}
	i.Files[node] = file
	i.Program = h.Program
	for _, b := range h.Backends {
		b.Name = named(node, b.Name)
		i.Backends = append(i.Backends, b)
	}
}

// describe fills in what a schema has.
func (i *Info) describe(s *codec.Schema) {
	i.Methods = nil
	for _, m := range s.Methods() {
		i.Methods = append(i.Methods, m.Name)
	}
}

// How many calls one block of compressed data holds. The page reads all blocks of rows when it starts, and a block of
// details when a user opens a call. page/detail.js has the same constant.
const (
	perRows    = 4096
	perDetails = 128
)

// A Writer writes a page with calls. It must not be used by two goroutines at once.
type Writer struct {
	Story  Story                      // it takes the header and the events before their calls are added
	Finder interface{ JSON() []byte } // it has taken all events when Close is called; nil if nobody looked for what is wrong

	out     *bufio.Writer  // which keeps the first error
	printer *calls.Printer // see Render
	calls   int
	rows    Batch
	details []json.RawMessage
	shared  []json.RawMessage // parts that the calls of details have in common
	places  map[string]int    // :: part of a call → its index in shared
}

// NewWriter returns a writer of a page to out. It uses printer as [Render] does. The caller closes out after Close.
func NewWriter(out io.Writer, printer *calls.Printer) *Writer {
	w := &Writer{out: bufio.NewWriter(out), printer: printer}
	_, _ = w.out.WriteString(page().begin(page().policy())) // Close returns the error
	return w
}

// Of says that what follows, in the Story and among the calls, is from a node, and is rendered with printer. A recording
// whose node has not been named before begins with its header.
func (w *Writer) Of(node string, printer *calls.Printer) {
	w.Story.node, w.printer = node, printer
}

// Add adds a call that has ended or, at the end of the recording, is still under way.
func (w *Writer) Add(c *calls.Call) {
	w.Story.Add(c)
	d, row := render(*w.printer, c, w.share)
	row.Key, row.Lost, row.Node = uint64(w.calls), !c.Ended, w.Story.node
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

// Calls returns how many calls were added.
func (w *Writer) Calls() int { return w.calls }

// Close writes the rest of the page. It returns the first error of all writes.
func (w *Writer) Close(info Info) error {
	w.flushDetails()
	w.flushRows()
	info.describe(w.printer.Schema)
	w.block("info", marshal(info))
	w.block("story", w.Story.JSON())
	if w.Finder != nil {
		w.block("wrong", w.Finder.JSON())
	}
	_, _ = w.out.WriteString(page().end()) // Flush returns the error
	return w.out.Flush()
}

// minShared is the least size, in bytes, of a part that is worth sharing.
const minShared = 64

// share returns the index of a part of a call in shared.
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

// block writes data as a script element that browsers do not run: base64 of gzip, so that no part of it can be taken
// for HTML. The first error stays in w.out.
func (w *Writer) block(id string, data []byte) {
	fmt.Fprintf(w.out, `<script type="text/plain" id="%s">`, id)
	text := base64.NewEncoder(base64.StdEncoding, w.out)
	zip := gzip.NewWriter(text)
	_, _ = zip.Write(data)
	_ = zip.Close()
	_ = text.Close()
	_, _ = w.out.WriteString("</script>\n")
}
