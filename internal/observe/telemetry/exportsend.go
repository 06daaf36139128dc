package telemetry

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	collector "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	logs "go.opentelemetry.io/proto/otlp/logs/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	grpcgzip "google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

const (
	maxBatch     = 512             // records
	maxBytes     = 1 << 20         // of a batch, before it is compressed
	longestAsked = 5 * time.Minute // that a store may ask for
	maxAnswer    = 64 << 10
)

// send sends what is queued until ctx ends, or until followed is closed and nothing is left.
func (e *Exporter) send(ctx context.Context, followed <-chan struct{}) {
	var to *store
	defer func() { to.close() }()
	for {
		if e.queue.len() == 0 {
			select {
			case <-e.queue.news:
				continue
			case <-followed:
				if e.queue.len() == 0 {
					return
				}
			case <-ctx.Done():
				return
			}
		}
		full := time.NewTimer(e.times.linger)
		for more := true; more && e.queue.len() < maxBatch; {
			select {
			case <-e.queue.news:
			case <-full.C:
				more = false
			case <-followed:
				more = false
			case <-ctx.Done():
				full.Stop()
				return
			}
		}
		full.Stop()
		to = e.deliver(ctx, to, e.queue.take(maxBatch, maxBytes))
	}
}

// deliver sends a batch, again and again until the store takes or refuses it, or ctx ends. It returns the store that is
// in use then. Each record of the batch is counted once: as sent or as lost. A reload ends the pause before the next attempt, which
// goes to the new store.
func (e *Exporter) deliver(ctx context.Context, to *store, batch []*logs.LogRecord) *store {
	for pause := e.times.pause; ; pause = min(2*pause, e.times.longest) {
		s := e.now.Load()
		if to == nil || to.settings != s {
			to.close()
			to = open(ctx, s)
			pause = e.times.pause
		}
		attempt, cancel := context.WithTimeout(ctx, e.times.attempt)
		rejected, err := to.export(attempt, batch)
		cancel()
		var later *temporary
		switch {
		case ctx.Err() != nil && err != nil:
			e.counts.lost(lostStopped, len(batch), nil)
			return to
		case err == nil:
			e.counts.delivered(len(batch))
			return to
		case !errors.As(err, &later):
			e.counts.delivered(len(batch) - rejected)
			e.counts.lost(lostRefused, rejected, err)
			return to
		}
		e.counts.fails(err, s.URL)
		wait := max(pause*time.Duration(80+rand.IntN(40))/100, min(later.after, longestAsked))
		select {
		case <-time.After(wait):
		case <-s.changed:
		case <-ctx.Done():
		}
	}
}

// temporary is an error after which the same request may succeed later.
type temporary struct {
	error
	after time.Duration // that the store asks for
}

func (t *temporary) Unwrap() error { return t.error }

// A store is a connection to a store, with the settings of one configuration: another configuration has another store. Only the
// goroutine of [Exporter.send] uses it, and closes it.
type store struct {
	*settings
	resource *resourcepb.Resource
	conn     *grpc.ClientConn // nil: OTLP over HTTP
	http     *http.Client
	broken   error // why there is no connection
}

// open returns a store that connects when it is used.
func open(ctx context.Context, s *settings) *store {
	to := &store{settings: s, resource: asProto(aboutNode(ctx, s.Node))}
	if !s.GRPC() {
		transport := &http.Transport{Proxy: http.ProxyFromEnvironment, MaxIdleConns: 1, IdleConnTimeout: time.Minute}
		if s.secured != nil {
			transport.DialTLSContext = s.secured.Dial
		}
		// A redirection would take the headers elsewhere.
		to.http = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		return to
	}
	u, err := url.Parse(s.URL)
	if err != nil {
		to.broken = err
		return to
	}
	var secured credentials.TransportCredentials = insecure.NewCredentials()
	if u.Scheme == "https" {
		secured = s.secured
	}
	host := u.Host
	if u.Port() == "" {
		host += ":4317"
	}
	to.conn, to.broken = grpc.NewClient("dns:///"+host, grpc.WithTransportCredentials(secured),
		grpc.WithDefaultCallOptions(grpc.UseCompressor(grpcgzip.Name), grpc.MaxCallRecvMsgSize(maxAnswer)))
	return to
}

func (to *store) close() {
	if to == nil {
		return
	}
	if to.conn != nil {
		_ = to.conn.Close() // nothing is under way
	}
	if to.http != nil {
		to.http.CloseIdleConnections()
	}
}

// export sends a batch once. With an error that is not temporary it returns how many records the store has refused.
func (to *store) export(ctx context.Context, batch []*logs.LogRecord) (rejected int, err error) {
	headers, err := to.headers()
	if err = cmp.Or(to.broken, err); err != nil {
		return 0, &temporary{error: err}
	}
	request := &collector.ExportLogsServiceRequest{ResourceLogs: []*logs.ResourceLogs{{
		Resource: to.resource,
		ScopeLogs: []*logs.ScopeLogs{{
			Scope:      &common.InstrumentationScope{Name: "github.com/criproxy/criproxy", Version: config.Version},
			LogRecords: batch,
		}},
	}}}
	send := to.overHTTP
	if to.conn != nil {
		send = to.overGRPC
	}
	answer, err := send(ctx, headers, request)
	if err != nil {
		return len(batch), err
	}
	if part := answer.GetPartialSuccess(); part.GetRejectedLogRecords() > 0 {
		return int(min(part.GetRejectedLogRecords(), int64(len(batch)))), fmt.Errorf("the store refused %d of %s: %s", part.GetRejectedLogRecords(), capture.Count(len(batch), "record"), part.GetErrorMessage())
	}
	return 0, nil
}

// headers returns the headers, with the contents of files.
func (to *store) headers() (map[string]string, error) {
	all := map[string]string{}
	for name, value := range to.Headers {
		if file, ok := strings.CutPrefix(value, "@"); ok {
			text, err := os.ReadFile(file)
			if err != nil {
				return nil, fmt.Errorf("export.headers.%s: %w", name, err)
			}
			value = strings.TrimSpace(string(text))
		}
		all[name] = value
	}
	return all, nil
}

func (to *store) overGRPC(ctx context.Context, headers map[string]string, request *collector.ExportLogsServiceRequest) (*collector.ExportLogsServiceResponse, error) {
	ctx = metadata.NewOutgoingContext(ctx, metadata.New(headers))
	answer, err := collector.NewLogsServiceClient(to.conn).Export(ctx, request)
	s, after, asked := status.Convert(err), time.Duration(0), false
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			after, asked = info.GetRetryDelay().AsDuration(), true
		}
	}
	switch s.Code() {
	case codes.OK:
		return answer, nil
	case codes.Canceled, codes.DeadlineExceeded, codes.Aborted, codes.OutOfRange, codes.Unavailable, codes.DataLoss: // as OTLP says
		return nil, &temporary{err, after}
	case codes.ResourceExhausted:
		if asked {
			return nil, &temporary{err, after}
		}
	case codes.Unimplemented:
		return nil, fmt.Errorf("%w; if the store accepts OTLP over HTTP, the URL needs a path, such as /v1/logs", err)
	}
	return nil, err
}

const protobuf = "application/x-protobuf"

func (to *store) overHTTP(ctx context.Context, headers map[string]string, message *collector.ExportLogsServiceRequest) (*collector.ExportLogsServiceResponse, error) {
	data, err := proto.Marshal(message)
	if err != nil {
		return nil, err
	}
	var body bytes.Buffer
	zip := gzip.NewWriter(&body)
	if _, err := zip.Write(data); err != nil {
		return nil, err
	}
	if err := zip.Close(); err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, to.URL, &body)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", protobuf)
	request.Header.Set("Content-Encoding", "gzip")
	for name, value := range headers {
		request.Header.Set(name, value)
	}
	response, err := to.http.Do(request)
	if err != nil {
		return nil, &temporary{error: err}
	}
	defer response.Body.Close() // it was only read
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, &temporary{error: err}
	}
	answers := fmt.Errorf("the store answers %s: %.200q", response.Status, text)
	switch code := response.StatusCode; code {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout: // as OTLP says
		after, _ := strconv.Atoi(response.Header.Get("Retry-After")) // it may have a date, or be missing
		return nil, &temporary{answers, time.Duration(after) * time.Second}
	default:
		if code < 200 || code > 299 {
			return nil, answers
		}
	}
	var answer collector.ExportLogsServiceResponse
	kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	switch {
	case len(text) == 0:
		return &answer, nil
	case kind == protobuf && proto.Unmarshal(text, &answer) == nil, kind == "application/json" && protojson.Unmarshal(text, &answer) == nil:
		return &answer, nil
	}
	return nil, fmt.Errorf("%w: this is no answer of OTLP; is the URL right?", answers)
}

// aboutNode says what criproxy runs on, for records and spans. node is its name in Kubernetes, the name of the host if
// empty. OTEL_RESOURCE_ATTRIBUTES in the environment adds to it.
func aboutNode(ctx context.Context, node string) *resource.Resource {
	host, _ := os.Hostname()                               // without one, the records have none
	about, _ := resource.New(ctx, resource.WithAttributes( // a part of it that cannot be found is missing
		attribute.String("service.name", "criproxy"), attribute.String("service.version", config.Version),
		attribute.String("host.name", host), attribute.String("k8s.node.name", cmp.Or(node, strings.ToLower(host)))),
		resource.WithFromEnv())
	return about
}

func asProto(about *resource.Resource) *resourcepb.Resource {
	r := &resourcepb.Resource{}
	for _, a := range about.Attributes() {
		r.Attributes = append(r.Attributes, &common.KeyValue{Key: string(a.Key), Value: stringValue(a.Value.String())})
	}
	return r
}
