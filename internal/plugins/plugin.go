package plugins

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

// plugin is a plugin as its file describes it. It is immutable, except for its connection and its
// statistics, which outlive a change of the file.
type plugin struct {
	name     string
	file     File
	points   map[*point]bool
	unknown  []string // points in its file that do not exist
	warnings []string
	conn     *connection
	stats    *stats
}

// table holds all plugins at one time. It is immutable.
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

// The metadata that plugins get with a call, in addition to the client's. Values are
// printable ASCII.
const (
	metaPoint   = "criproxy-point"   // "PostStartContainer"
	metaID      = "criproxy-id"      // front id of the object; missing before it exists
	metaParent  = "criproxy-parent"  // front id of the object that it is in
	metaCode    = "criproxy-code"    // after a call: its status code, such as "OK" or "NotFound"
	metaMessage = "criproxy-message" // after a call that failed: its error message
)

// ask asks the plugin about an object at a point, with metadata, and returns its answer. The error says why there is no usable
// answer. It is a [*refusal] if the plugin answered with an error.
func (p *plugin) ask(ctx context.Context, at *point, about protoreflect.Message, md metadata.MD, timeout time.Duration) (protoreflect.Message, error) {
	if !p.conn.use() {
		return nil, errors.New("the plugin has been removed")
	}
	defer p.conn.release()
	body, err := encode(about)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(metadata.NewOutgoingContext(ctx, md), timeout)
	defer cancel()
	data, err := p.conn.ask(ctx, at.method, body)
	switch {
	// The plugin's clock may be ahead of ours. An answer at the very end of the time counts as
	// late, because it may come from a plugin that has given up.
	case errors.Is(ctx.Err(), context.DeadlineExceeded), status.Code(err) == codes.DeadlineExceeded:
		return nil, &timeoutError{timeout}
	case err == nil:
	case status.Code(err) == codes.Unavailable, status.Code(err) == codes.Canceled:
		return nil, fmt.Errorf("cannot be asked: %s", status.Convert(err).Message())
	case status.Code(err) == codes.Unimplemented:
		return nil, fmt.Errorf("has no method for this point: %s", status.Convert(err).Message())
	case status.Code(err) == codes.ResourceExhausted && strings.HasPrefix(status.Convert(err).Message(), "grpc: "): // from our end of the connection
		return nil, fmt.Errorf("gave an answer that is too large: %s", status.Convert(err).Message())
	default:
		return nil, &refusal{status.Convert(err)}
	}
	answer, err := decode(at.answer, data)
	if err != nil {
		return nil, fmt.Errorf("gave an answer of the wrong shape: %w", err)
	}
	return answer, nil
}

// refusal is the error with which a plugin answered.
type refusal struct{ status *status.Status }

func (r *refusal) Error() string {
	return fmt.Sprintf("says no: %s (%s)", r.status.Message(), r.status.Code())
}

// timeoutError says that a plugin did not answer in time.
type timeoutError struct{ after time.Duration }

func (e *timeoutError) Error() string { return fmt.Sprintf("did not answer within %s", e.after) }

// budget returns how long a plugin may take under the deadline of the call: at most half of the
// time that is left, so that later plugins and the runtime have time as well.
func budget(ctx context.Context, timeout time.Duration) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return timeout
	}
	if left := time.Until(deadline); left > 0 {
		return min(timeout, left/2)
	}
	return timeout // the client does not wait any longer
}
