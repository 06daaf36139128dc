package drift

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/profile"
)

// Config has the profile and the schema of the API. All fields except Found are required.
type Config struct {
	Profile  *profile.Profile
	Schema   *codec.Schema
	Backends []string // their names

	// Found is called once for each new finding. It must not block. Optional.
	Found func(Finding)
}

// These bound what a Watch examines: of each method the first calls, and then one at intervals; of each call the
// beginning of the first messages in each direction.
const (
	firstCalls  = 32
	pause       = 5 * time.Second
	maxMessages = 8
	maxBytes    = 256 << 10
	maxFindings = 200 // a client can invent any number of methods
)

// A Watch collects findings from the client's legs of calls. It is safe for concurrent use.
type Watch struct {
	found   func(Finding)
	table   atomic.Pointer[table]
	methods sync.Map // :: method → *turn

	mu       sync.Mutex
	findings map[[2]string]*Finding // :: kind, where
}

// New returns a watch for cfg. It fails if the profile has a mistake.
func New(cfg Config) (*Watch, error) {
	w := &Watch{found: cfg.Found, findings: map[[2]string]*Finding{}}
	commit, err := w.Stage(cfg)
	if err != nil {
		return nil, err
	}
	commit()
	return w, nil
}

// Stage finds the mistakes of cfg, and changes nothing. commit makes the watch use cfg, except Found, and forget the findings
// that the profile covers now.
func (w *Watch) Stage(cfg Config) (commit func(), err error) {
	t, err := compile(cfg)
	if err != nil {
		return nil, err
	}
	return func() {
		w.table.Store(t)
		w.mu.Lock()
		defer w.mu.Unlock()
		maps.DeleteFunc(w.findings, func(_ [2]string, f *Finding) bool { return t.knows(f) })
		w.methods.Clear()
	}, nil
}

// Findings returns all findings, the most serious first.
func (w *Watch) Findings() []Finding {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := []Finding{}
	for _, f := range w.findings {
		all = append(all, *f)
	}
	order := []string{ID, Method, Field}
	slices.SortFunc(all, func(a, b Finding) int {
		return cmp.Or(slices.Index(order, a.Kind)-slices.Index(order, b.Kind), cmp.Compare(a.Where, b.Where))
	})
	return all
}

// turn says when the Watch examines a method again.
type turn struct {
	calls atomic.Int64
	next  atomic.Int64 // a time.Duration since began, which does not depend on changes of the clock
}

var began = time.Now()

func (w *Watch) due(method string) bool {
	v, ok := w.methods.Load(method)
	if !ok {
		v, _ = w.methods.LoadOrStore(method, &turn{})
	}
	t := v.(*turn)
	if t.calls.Add(1) <= firstCalls {
		return true
	}
	now, next := int64(time.Since(began)), t.next.Load()
	return now >= next && t.next.CompareAndSwap(next, now+int64(pause))
}

// Begin implements [director.Tracer]: it returns a leg for those calls of clients that the Watch examines.
func (w *Watch) Begin(ctx context.Context, info director.LegInfo) (context.Context, director.Leg) {
	if !info.Client {
		return ctx, nil
	}
	t, method := w.table.Load(), info.Method
	m := t.schema.Method(method)
	switch {
	case m == nil && t.ours(method):
		w.add(method, Finding{Kind: Method, Where: method,
			Suggest: "proto: [api.proto], with a newer file that has this method; until then its calls pass to the primary unchanged"})
		return ctx, nil
	case m == nil || !t.ours(method) || !w.due(method):
		return ctx, nil
	}
	return ctx, &leg{watch: w, table: t, method: m, name: method}
}

func (w *Watch) add(method string, f Finding) {
	w.mu.Lock()
	key := [2]string{f.Kind, f.Where}
	old := w.findings[key]
	if old == nil {
		if len(w.findings) >= maxFindings {
			w.mu.Unlock()
			return
		}
		f.Method = method
		old = &f
		w.findings[key] = old
	}
	old.Count++
	first := old.Count == 1
	w.mu.Unlock()
	if first && w.found != nil {
		w.found(f)
	}
}

// knows reports whether the profile now covers a finding.
func (t *table) knows(f *Finding) bool {
	switch f.Kind {
	case Method:
		return t.schema.Method(f.Where) != nil
	case ID:
		return !slices.Contains(slices.Collect(maps.Values(t.open)), f.Where)
	default:
		return true // if it is still unknown, the watch finds it again
	}
}

// unknown returns the finding for a field that its message does not have.
func (t *table) unknown(md protoreflect.MessageDescriptor, num protowire.Number, value []byte) Finding {
	f := Finding{Kind: Field, Where: fmt.Sprintf("%s field %d", md.Name(), num),
		Suggest: fmt.Sprintf("proto: [api.proto], with a newer file in which %s has field %d; until then the field passes unchanged", md.FullName(), num)}
	if p := t.prefix(value); p != "" {
		f.Suggest += fmt.Sprintf(", though it seems to hold an id, with %s before it", p)
	}
	return f
}

// A leg is a client's leg that the Watch examines.
type leg struct {
	watch             *Watch
	table             *table
	method            *codec.Method
	name              string
	requests, replies atomic.Int32
}

// Request examines a message of the client. It does not keep the frame.
func (l *leg) Request(f *codec.Frame) { l.look(&l.requests, l.method.Input, f) }

// Reply examines a message to the client. It does not keep the frame.
func (l *leg) Reply(f *codec.Frame) { l.look(&l.replies, l.method.Output, f) }

// Header ignores the header.
func (l *leg) Header(metadata.MD) {}

// End ignores the end.
func (l *leg) End(error, metadata.MD) {}

func (l *leg) look(n *atomic.Int32, md protoreflect.MessageDescriptor, f *codec.Frame) {
	if n.Add(1) > maxMessages {
		return
	}
	seen := map[[2]string]bool{} // once a message
	l.table.scan(md, f.AppendTo(make([]byte, 0, min(f.Len(), maxBytes)), maxBytes), 0, func(f Finding) {
		if key := [2]string{f.Kind, f.Where}; !seen[key] {
			seen[key] = true
			l.watch.add(l.name, f)
		}
	})
}
