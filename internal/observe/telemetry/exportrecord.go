package telemetry

import (
	"context"
	"fmt"
	"strings"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	logs "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/grpc/codes"

	"github.com/criproxy/criproxy/internal/base/dump"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// maxBody is how many bytes of a message a record has.
const maxBody = 64 << 10

// newRecord returns a record about a time. bad makes it one that people look for.
func newRecord(event string, at time.Time, bad bool, body string) *logs.LogRecord {
	r := &logs.LogRecord{
		EventName: event, TimeUnixNano: uint64(at.UnixNano()), ObservedTimeUnixNano: uint64(time.Now().UnixNano()),
		SeverityNumber: logs.SeverityNumber_SEVERITY_NUMBER_INFO, SeverityText: "INFO", Body: stringValue(body),
	}
	if bad {
		r.SeverityNumber, r.SeverityText = logs.SeverityNumber_SEVERITY_NUMBER_ERROR, "ERROR"
	}
	// Stores that do not know names of events show attributes.
	textOf(r, "event.name", event)
	return r
}

func stringValue(s string) *common.AnyValue {
	return &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: strings.ToValidUTF8(s, "\uFFFD")}}
}

func add(r *logs.LogRecord, key string, v *common.AnyValue) {
	r.Attributes = append(r.Attributes, &common.KeyValue{Key: key, Value: v})
}

// textOf adds an attribute, unless it is empty.
func textOf(r *logs.LogRecord, key, v string) {
	if v != "" {
		add(r, key, stringValue(v))
	}
}

func number(r *logs.LogRecord, key string, n int64) {
	add(r, key, &common.AnyValue{Value: &common.AnyValue_IntValue{IntValue: n}})
}

func seconds(r *logs.LogRecord, key string, d time.Duration) {
	add(r, key, &common.AnyValue{Value: &common.AnyValue_DoubleValue{DoubleValue: d.Round(time.Microsecond).Seconds()}})
}

// methodAttributes adds the attributes that OpenTelemetry defines for calls.
func methodAttributes(r *logs.LogRecord, method string, code codes.Code) {
	service, name, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	textOf(r, "rpc.system", "grpc")
	textOf(r, "rpc.service", service)
	textOf(r, "rpc.method", name)
	number(r, "rpc.grpc.status_code", int64(code))
}

// callRecord returns the record of a call.
func (e *Exporter) callRecord(c *calls.Call, bodies bool) *logs.LogRecord {
	about, backends, front := c.About, strings.Join(c.Backends(), ","), c.Front()
	body := calls.ShortMethod(c.Method)
	if what := about.String(); what != "" {
		body += " " + what
	}
	if backends != "" {
		body += " of " + backends
	}
	body += fmt.Sprintf(": %s after %s", c.Code, calls.Rounded(c.Took))
	if c.Message != "" {
		body += ": " + c.Message
	}
	r := newRecord("criproxy.call", c.Began, c.Failed(), body)
	methodAttributes(r, c.Method, c.Code)
	textOf(r, "criproxy.backend", backends)
	textOf(r, "criproxy.client", c.From())
	seconds(r, "criproxy.duration_seconds", c.Took)
	number(r, "criproxy.request_bytes", int64(front.Requests.Bytes))
	number(r, "criproxy.reply_bytes", int64(front.Replies.Bytes))
	if about.Items > 0 {
		number(r, "criproxy.items", int64(about.Items))
	}
	textOf(r, "criproxy.message", c.Message)
	textOf(r, "criproxy.remembered", strings.Join(c.FromCache(), ","))
	textOf(r, "k8s.namespace.name", about.Namespace)
	textOf(r, "k8s.pod.name", about.Pod)
	textOf(r, "k8s.pod.uid", about.UID)
	textOf(r, "k8s.container.name", about.Container)
	textOf(r, "container.image.name", about.Image)
	ids := about.IDs
	if about.Container != "" && len(ids) > 0 {
		textOf(r, "container.id", ids[0])
		ids = ids[1:]
	}
	if len(ids) > 0 {
		textOf(r, "criproxy.id", ids[0])
	}
	if bodies {
		textOf(r, "criproxy.request", e.messages(front.Method, capture.Request, front.Requests))
		textOf(r, "criproxy.reply", e.messages(front.Method, capture.Reply, front.Replies))
	}
	for _, l := range c.Legs { // the client's is the first; criproxy may have begun a trace of its own
		if traced(r, l.Metadata) {
			break
		}
	}
	return r
}

// messages returns messages as JSON, one a line.
func (e *Exporter) messages(method string, kind capture.Kind, all calls.Messages) string {
	md := capture.MessageOf(e.recording.Schema, method, kind)
	var b []byte
	for i, m := range all.Kept {
		if i > 0 {
			b = append(b, '\n')
		}
		b = dump.AppendJSON(b, md, m.Payload)
	}
	return string(b)
}

// traced puts the trace that the metadata of a call names into its record, and reports whether there is one.
func traced(r *logs.LogRecord, md map[string][]string) bool {
	span := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier(md)))
	if !span.IsValid() {
		return false
	}
	id, of := span.TraceID(), span.SpanID()
	r.TraceId, r.SpanId, r.Flags = id[:], of[:], uint32(span.TraceFlags())
	return true
}

// changeRecord returns the record of a change.
func changeRecord(c *capture.Change) *logs.LogRecord {
	bad := c.What == capture.Gone || c.What == capture.Refused || c.What == capture.PluginDown
	r := newRecord("criproxy.change", c.Time, bad, c.String())
	if c.What == capture.Slow {
		r.SeverityNumber, r.SeverityText = logs.SeverityNumber_SEVERITY_NUMBER_WARN, "WARN"
	}
	textOf(r, "criproxy.change", c.What)
	textOf(r, "criproxy.backend", c.Backend)
	textOf(r, "criproxy.plugin", c.Plugin)
	textOf(r, "criproxy.message", c.Why)
	textOf(r, "criproxy.was", c.Was)
	if c.Was != "" && !c.Since.IsZero() {
		seconds(r, "criproxy.duration_seconds", c.Lasted())
	}
	if c.Pods != nil {
		number(r, "criproxy.pods", int64(*c.Pods))
	}
	if c.Containers != nil {
		number(r, "criproxy.containers", int64(*c.Containers))
	}
	return r
}
