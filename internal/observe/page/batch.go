package page

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/criproxy/criproxy/internal/observe/calls"
)

// A Batch has some rows of the table of calls, in the form that the page reads: arrays of numbers. For a string, the
// number is its index in the batch's list of strings. The zero Batch is empty.
type Batch struct {
	strings []string
	places  map[string]int64
	rows    [][]any
	missing uint64 // calls that should be before these rows
}

// Len returns how many rows there are.
func (b *Batch) Len() int { return len(b.rows) }

// Codes of a row in addition to gRPC's.
const (
	underWay = -1
	lost     = -2
	left     = -3 // Canceled, because the client ended the call
)

// unknown is how many fields were rewritten as long as nobody has compared the messages.
const unknown = -1

// A Row is a call in the table.
type Row struct {
	Key     uint64      // identifies the call in the page; a row replaces an earlier one with the same key
	Node    string      // where the call was made, if there are several nodes
	Call    *calls.Call // Add copies what it needs
	Changes int         // how many fields were rewritten
	Lost    bool        // the call was under way when the recording ended
}

// Add appends a row.
//
// The order of the columns is that of COLUMNS in page/model.js.
func (b *Batch) Add(r Row) {
	c := r.Call
	front, fromCache := c.Front(), c.FromCache()
	legs, cached, meant := []int64{}, []int64{}, []int64{} // five numbers of each leg, one of each name
	for _, l := range c.Legs {
		if l.Number == 0 {
			continue
		}
		isCached := int64(0)
		if slices.Contains(fromCache, l.Backend) {
			isCached = 1
		}
		began := max(l.Began.Sub(c.Began), 0)
		legs = append(legs, b.place(named(r.Node, l.Backend)), began.Microseconds(), l.Took.Microseconds(), code(l.Ended, r.Lost, l.Failed(), int64(l.Code)), isCached)
	}
	for _, name := range fromCache {
		cached = append(cached, b.place(named(r.Node, name)))
	}
	for _, name := range c.Meant() {
		meant = append(meant, b.place(named(r.Node, name)))
	}
	b.rows = append(b.rows, []any{
		r.Key,
		c.ID,
		unix(c.Began),
		c.Took.Microseconds(),
		b.place(c.Method),
		b.place(c.From()),
		c.Peer.PID,
		code(c.Ended, r.Lost, c.Failed(), int64(c.Code)),
		b.place(c.Message),
		b.place(c.About.Namespace),
		b.place(cmp.Or(c.About.Pod, c.About.Name)),
		b.place(c.About.UID),
		b.place(c.About.Container),
		b.place(c.About.Image),
		b.place(strings.Join(c.About.IDs, " ")),
		c.About.Items,
		front.Requests.Bytes,
		front.Replies.Bytes,
		r.flags(),
		r.Changes,
		legs,
		cached,
		b.place(r.Node),
		meant,
	})
}

// flags returns OWN, PARTIAL and STREAM of page/model.js.
func (r Row) flags() (flags int64) {
	for i, set := range []bool{r.Call.Own, r.Call.Partial, r.Call.Front().Replies.Count > 1} {
		if set {
			flags |= 1 << i
		}
	}
	return flags
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

// place returns the index of s in the list of strings. The index of the empty string is 0.
func (b *Batch) place(s string) int64 {
	if b.places == nil {
		b.places, b.strings = map[string]int64{"": 0}, []string{""}
	}
	at, ok := b.places[s]
	if !ok {
		at = int64(len(b.strings))
		b.places[s], b.strings = at, append(b.strings, s)
	}
	return at
}

// JSON returns the batch: {"s": strings, "r": rows, "m": how many calls before the rows are missing}.
func (b *Batch) JSON() []byte {
	b.place("")
	return marshal(struct {
		S []string `json:"s"`
		R [][]any  `json:"r"`
		M uint64   `json:"m,omitempty"`
	}{b.strings, list(b.rows), b.missing})
}

// milliseconds returns a duration in the unit of the page.
func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }
