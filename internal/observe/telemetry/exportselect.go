package telemetry

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	logs "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/grpc/codes"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/profile"
)

// defaultSlower is the time from which on the default selection sends a call because it was slow.
const defaultSlower = time.Second

// sends reports whether a call becomes a record.
func (s *settings) sends(c *calls.Call, p *profile.Profile) bool {
	switch {
	case s.chosen:
		return s.filter.Match(c)
	case c.Failed():
		return true
	case p.Endless(c.Method): // it lasts until its client leaves
		return false
	case c.Took >= defaultSlower:
		return true
	}
	return p.LogLevel(c.Method) <= profile.StateChanging && !calls.MatchesMethod(s.Quiet, c.Method)
}

// A tally counts the calls that do not become records, until it gives the counts as records. Only the goroutine of [Exporter.follow]
// uses it. Its keys are bounded by the schema, gRPC's codes and the backends: clients choose none of them.
type tally map[counted]*count

// counted is what counted calls have in common.
type counted struct {
	method, backends string
	code             codes.Code
}

type count struct {
	calls      int
	total, max time.Duration
}

// unknownMethod is the method of calls that the schema does not know. Clients choose these, so their number is not bounded.
const unknownMethod = "/other/other"

func (t tally) add(c *calls.Call, schema *codec.Schema) {
	key := counted{c.Method, strings.Join(c.Backends(), ","), min(c.Code, codes.Unauthenticated+1)}
	if schema.Method(c.Method) == nil {
		key.method = unknownMethod
	}
	n := t[key]
	if n == nil {
		n = &count{}
		t[key] = n
	}
	n.calls++
	n.total += c.Took
	n.max = max(n.max, c.Took)
}

// records gives the counts as records to put, and begins anew.
func (t tally) records(put func(*logs.LogRecord)) {
	for key, n := range t {
		body := fmt.Sprintf("%s of %s of %s: %s, the slowest took %s", capture.Count(n.calls, "call"), calls.ShortMethod(key.method), cmp.Or(key.backends, "criproxy"), key.code, calls.Rounded(n.max))
		r := newRecord("criproxy.count", time.Now(), key.code != codes.OK, body)
		methodAttributes(r, key.method, key.code)
		textOf(r, "criproxy.backend", key.backends)
		number(r, "criproxy.count", int64(n.calls))
		seconds(r, "criproxy.duration_sum_seconds", n.total)
		seconds(r, "criproxy.duration_max_seconds", n.max)
		put(r)
		delete(t, key)
	}
}
