package hook

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// plugin is one file of the folder, as calls see it. It is immutable but for its
// connection and its statistics, which outlive a change of the file.
type plugin struct {
	name     string
	file     File
	points   map[*point]bool
	unknown  []string // names of points that are none
	warnings []string
	conn     *connection
	stats    *stats
}

// table is all plugins at one time. It is immutable.
type table struct {
	plugins []*plugin            // in the order of their names
	at      map[*point][]*plugin // the same, by point
}

func newTable(plugins []*plugin) *table {
	t := &table{plugins: plugins, at: map[*point][]*plugin{}}
	for _, p := range plugins {
		for pt := range p.points {
			t.at[pt] = append(t.at[pt], p)
		}
	}
	return t
}

// The metadata that plugins get with a call, beside what the client sent. Values are
// printable ASCII.
const (
	metaPoint   = "criproxy-point"   // "PostStartContainer"
	metaID      = "criproxy-id"      // of the object, as clients know it; missing before it is made
	metaParent  = "criproxy-parent"  // the id of what it lies in
	metaCode    = "criproxy-code"    // after a call, how it ended: "OK", "NotFound"
	metaMessage = "criproxy-message" // after a call that failed, why
)

// question is what one plugin is asked.
type question struct {
	point   *point
	body    protoreflect.Message
	meta    metadata.MD
	timeout time.Duration
}

// ask asks the plugin and returns its answer. Its error says why there is none that
// could be used: a [*refusal] if the plugin said no.
func (p *plugin) ask(ctx context.Context, q question) (protoreflect.Message, error) {
	if !p.conn.use() {
		return nil, errors.New("the plugin has been removed")
	}
	defer p.conn.release()
	body, err := encode(q.body)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(metadata.NewOutgoingContext(ctx, q.meta), q.timeout)
	defer cancel()
	data, err := p.conn.ask(ctx, q.point.method, body)
	switch {
	// Its clock may be ahead of ours. An answer that comes with the end of the time is
	// late: a plugin that gives up then may not mean it.
	case errors.Is(ctx.Err(), context.DeadlineExceeded), status.Code(err) == codes.DeadlineExceeded:
		return nil, &timeoutError{q.timeout}
	case err == nil:
	case status.Code(err) == codes.Unavailable, status.Code(err) == codes.Canceled:
		return nil, fmt.Errorf("cannot be asked: %s", status.Convert(err).Message())
	case status.Code(err) == codes.Unimplemented:
		return nil, fmt.Errorf("has no method for this point: %s", status.Convert(err).Message())
	case status.Code(err) == codes.ResourceExhausted && strings.HasPrefix(status.Convert(err).Message(), "grpc: "): // our own end
		return nil, fmt.Errorf("gave an answer that is too large: %s", status.Convert(err).Message())
	default:
		return nil, &refusal{status.Convert(err)}
	}
	answer, err := decode(q.point.answer, data)
	if err != nil {
		return nil, fmt.Errorf("gave an answer of the wrong shape: %w", err)
	}
	return answer, nil
}

// refusal is a plugin that answered with an error.
type refusal struct{ status *status.Status }

func (r *refusal) Error() string {
	return fmt.Sprintf("says no: %s (%s)", r.status.Message(), r.status.Code())
}

// timeoutError is a plugin that did not answer in time.
type timeoutError struct{ after time.Duration }

func (e *timeoutError) Error() string { return fmt.Sprintf("did not answer within %s", e.after) }

// budget is how long a plugin may take under the deadline of the call: at most half of
// what is left, so that the plugins behind it, and above all the runtime, have time as well.
func budget(ctx context.Context, timeout time.Duration) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return timeout
	}
	if left := time.Until(deadline); left > 0 {
		return min(timeout, left/2)
	}
	return timeout // the client waits no longer
}
