package report

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/criproxy/criproxy/internal/inspect"
)

// A Batch is some rows of the table of calls, as the page reads them: arrays of numbers, in which
// a string is its place in a list that the batch has. The zero Batch is empty.
type Batch struct {
	strings []string
	places  map[string]int
	rows    []byte
	count   int
}

// Len returns how many rows there are.
func (b *Batch) Len() int { return b.count }

// Codes of a row beside those of gRPC.
const (
	underWay = -1
	lost     = -2
	left     = -3 // Canceled, as the client ended the call
)

// The flags of a row.
const (
	flagOwn = 1 << iota
	flagPartial
	flagStream
	flagMemory
	flagNoRead // some of it could not be compared
)

// A Row is a call in the table.
type Row struct {
	Key     uint64        // of the call in the page; a row replaces an earlier one with the same key
	Call    *inspect.Call // of which the row keeps nothing
	Changes int           // how many fields were rewritten
	Gaps    bool          // not all could be compared
	Lost    bool          // the call was under way when the recording ended
}

// Add appends a row.
//
// The order of the columns is that of COLUMNS in page/model.js.
func (b *Batch) Add(r Row) {
	c := r.Call
	if b.count++; b.count > 1 {
		b.rows = append(b.rows, ',')
	}
	front := c.Front()
	b.rows = append(strconv.AppendUint(append(b.rows, '['), r.Key, 10), ',')
	b.rows = strconv.AppendFloat(b.rows, float64(c.Began.UnixMicro())/1e3, 'f', 3, 64)
	b.number(c.Took.Microseconds())
	b.text(c.Method)
	b.text(c.From())
	b.number(int64(c.Peer.PID))
	b.number(code(c.Ended, r.Lost, c.Failed(), int64(c.Code)))
	b.text(c.Message)
	b.text(c.About.Namespace)
	b.text(cmp.Or(c.About.Pod, c.About.Name))
	b.text(c.About.UID)
	b.text(c.About.Container)
	b.text(c.About.Image)
	b.text(strings.Join(c.About.IDs, " "))
	b.number(int64(c.About.Items))
	b.number(int64(front.Requests.Bytes))
	b.number(int64(front.Replies.Bytes))
	b.number(r.flags())
	b.number(int64(r.Changes))
	b.rows = append(b.rows, ",["...)
	memory := c.Remembered()
	for i, l := range backendLegs(c) {
		if i > 0 {
			b.rows = append(b.rows, ',')
		}
		b.rows = strconv.AppendInt(b.rows, int64(b.place(l.Backend)), 10)
		b.number(max(l.Began.Sub(c.Began), 0).Microseconds())
		b.number(l.Took.Microseconds())
		b.number(code(l.Ended, r.Lost, l.Failed(), int64(l.Code)))
		if slices.Contains(memory, l.Backend) {
			b.number(1)
		} else {
			b.number(0)
		}
	}
	b.rows = append(b.rows, "],["...)
	for i, name := range memory {
		if i > 0 {
			b.rows = append(b.rows, ',')
		}
		b.rows = strconv.AppendInt(b.rows, int64(b.place(name)), 10)
	}
	b.rows = append(b.rows, "]]"...)
}

func (r Row) flags() (flags int64) {
	for _, f := range []struct {
		set  bool
		flag int64
	}{
		{r.Call.Own, flagOwn}, {r.Call.Partial, flagPartial}, {r.Call.Front().Replies.Count > 1, flagStream},
		{len(r.Call.Remembered()) > 0, flagMemory}, {r.Gaps, flagNoRead},
	} {
		if f.set {
			flags |= f.flag
		}
	}
	return flags
}

func backendLegs(c *inspect.Call) (legs []*inspect.Leg) {
	for _, l := range c.Legs {
		if l.Number != 0 {
			legs = append(legs, l)
		}
	}
	return legs
}

func code(ended, gone, failed bool, code int64) int64 {
	switch {
	case ended && code != 0 && !failed:
		return left
	case ended:
		return code
	case gone:
		return lost
	}
	return underWay
}

func (b *Batch) number(n int64) { b.rows = strconv.AppendInt(append(b.rows, ','), n, 10) }
func (b *Batch) text(s string)  { b.number(int64(b.place(s))) }

// place returns where s stands in the list of strings. The empty string is the first.
func (b *Batch) place(s string) int {
	if b.places == nil {
		b.places, b.strings = map[string]int{"": 0}, []string{""}
	}
	at, ok := b.places[s]
	if !ok {
		at = len(b.strings)
		b.places[s], b.strings = at, append(b.strings, s)
	}
	return at
}

// JSON returns the batch: {"s": strings, "r": rows}.
func (b *Batch) JSON() []byte {
	b.place("")
	names, err := json.Marshal(b.strings)
	if err != nil { // of strings: cannot fail
		names = []byte("[]")
	}
	out := make([]byte, 0, len(names)+len(b.rows)+16)
	out = append(append(out, `{"s":`...), names...)
	out = append(append(out, `,"r":[`...), b.rows...)
	return append(out, "]}"...)
}

// milliseconds is a duration as the page has it.
func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }
