package telemetry

import (
	"compress/gzip"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	collector "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	logs "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	_ "google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/cri"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/server/listen"
)

// A node is a recorder with an exporter.
type node struct {
	t   testing.TB
	rec *capture.Recorder
	*Exporter
}

func newNode(t testing.TB) *node {
	d, err := criadapter.Config(criadapter.Options{})
	require.NoError(t, err)
	schema := d.Profile.AllVersions(d.Schema)
	r, err := NewRecording(&config.Config{FlightRecorder: 8 << 20}, d, nil)
	require.NoError(t, err)
	n := &node{t: t, rec: r.rec, Exporter: NewExporter(r, func() calls.Namer {
		names, err := cri.NewNames(d.Profile, schema, nil)
		require.NoError(t, err)
		return names
	})}
	n.times = times{count: time.Hour, linger: time.Millisecond, attempt: 10 * time.Second, pause: time.Millisecond, longest: 10 * time.Millisecond, last: 10 * time.Second}
	t.Cleanup(n.end)
	return n
}

// end ends the recording and then the exporter.
func (n *node) end() {
	n.rec.Close()
	n.Stop()
}

// configure sends to a store.
func (n *node) configure(c config.Export) {
	c.Quiet = config.DefaultQuiet
	require.NoError(n.t, CheckExport(&c))
	n.Configure(c, nil)
}

// call records a call of kubelet that alpha.io answers.
func (n *node) call(method string, request, reply proto.Message, err error, md ...string) {
	service := "/runtime.v1.RuntimeService/"
	if strings.Contains(method, "Image") {
		service = "/runtime.v1.ImageService/"
	}
	ctx, front := n.rec.Begin(context.Background(), capture.LegInfo{Method: service + method, Client: true, Metadata: metadata.Pairs(md...), Peer: capture.Peer{PID: 7, Name: "kubelet"}})
	_, back := n.rec.Begin(ctx, capture.LegInfo{Method: service + method, Backend: "alpha.io"})
	for _, leg := range []*capture.Leg{front, back} {
		leg.Request(frame(n.t, request))
		if err == nil {
			leg.Reply(frame(n.t, reply))
		}
	}
	back.End(err, nil)
	front.End(err, nil)
}

func frame(t testing.TB, m proto.Message) *codec.Frame {
	b, err := proto.Marshal(m)
	require.NoError(t, err)
	return codec.NewFrame(b)
}

// sandbox records that a pod is made.
func (n *node) sandbox(name string, err error) {
	n.call("RunPodSandbox", &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "shop", Uid: "uid-" + name},
	}}, &runtimeapi.RunPodSandboxResponse{PodSandboxId: "alpha.io__" + name}, err)
}

// list records calls that only read.
func (n *node) list(times int) {
	for range times {
		n.call("ListPodSandbox", &runtimeapi.ListPodSandboxRequest{}, &runtimeapi.ListPodSandboxResponse{}, nil)
	}
}

// A fakeStore keeps the records that it gets over HTTP or gRPC.
type fakeStore struct {
	collector.UnimplementedLogsServiceServer
	url      string
	headers  http.Header
	requests atomic.Int64

	mu       sync.Mutex
	records  []*logs.LogRecord
	resource map[string]string
	refuse   func(w http.ResponseWriter) bool // reports whether it has answered
	answer   func() (*collector.ExportLogsServiceResponse, error)
}

func (s *fakeStore) take(r *collector.ExportLogsServiceRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range r.GetResourceLogs() {
		s.resource = attributesOf(of.GetResource().GetAttributes())
		for _, scope := range of.GetScopeLogs() {
			s.records = append(s.records, scope.GetLogRecords()...)
		}
	}
}

// bodies returns the texts of the records.
func (s *fakeStore) bodies() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for _, r := range s.records {
		all = append(all, r.GetBody().GetStringValue())
	}
	return all
}

// await waits until the store has so many records.
func (s *fakeStore) await(t *testing.T, n int) []*logs.LogRecord {
	t.Helper()
	require.Eventually(t, func() bool { return len(s.bodies()) >= n }, time.Minute, 5*time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.records)
}

func attributesOf(all []*common.KeyValue) map[string]string {
	m := map[string]string{}
	for _, a := range all {
		switch v := a.GetValue().GetValue().(type) {
		case *common.AnyValue_IntValue:
			m[a.GetKey()] = fmt.Sprint(v.IntValue)
		case *common.AnyValue_DoubleValue:
			m[a.GetKey()] = fmt.Sprint(v.DoubleValue)
		default:
			m[a.GetKey()] = a.GetValue().GetStringValue()
		}
	}
	return m
}

func (s *fakeStore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.requests.Add(1)
	s.mu.Lock()
	refuse := s.refuse
	s.headers = r.Header
	s.mu.Unlock()
	if refuse != nil && refuse(w) {
		return
	}
	z, err := gzip.NewReader(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	body, err := io.ReadAll(z)
	var request collector.ExportLogsServiceRequest
	if err != nil || proto.Unmarshal(body, &request) != nil {
		http.Error(w, "nonsense", http.StatusBadRequest)
		return
	}
	s.take(&request)
}

func (s *fakeStore) Export(_ context.Context, r *collector.ExportLogsServiceRequest) (*collector.ExportLogsServiceResponse, error) {
	s.requests.Add(1)
	s.mu.Lock()
	answer := s.answer
	s.mu.Unlock()
	if answer != nil {
		if a, err := answer(); a != nil || err != nil {
			return a, err
		}
	}
	s.take(r)
	return &collector.ExportLogsServiceResponse{}, nil
}

func overHTTP(t *testing.T) *fakeStore {
	s := &fakeStore{}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	s.url = server.URL + "/v1/logs"
	return s
}

func overGRPC(t *testing.T) *fakeStore {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &fakeStore{url: "http://" + l.Addr().String()}
	s.serve(t, l)
	return s
}

func (s *fakeStore) serve(t *testing.T, l net.Listener, options ...grpc.ServerOption) {
	server := grpc.NewServer(options...)
	collector.RegisterLogsServiceServer(server, s)
	go server.Serve(l)
	t.Cleanup(server.Stop)
}

func TestACallIsOneRecordWithOpenTelemetrysNames(t *testing.T) {
	for name, start := range map[string]func(*testing.T) *fakeStore{"http": overHTTP, "grpc": overGRPC} {
		t.Run(name, func(t *testing.T) {
			store, n := start(t), newNode(t)
			n.configure(config.Export{URL: store.url, Node: "node-7"})
			n.sandbox("web", nil)
			n.call("CreateContainer", &runtimeapi.CreateContainerRequest{PodSandboxId: "alpha.io__web", Config: &runtimeapi.ContainerConfig{
				Metadata: &runtimeapi.ContainerMetadata{Name: "nginx"}, Image: &runtimeapi.ImageSpec{Image: "registry.example/nginx:1"},
			}}, &runtimeapi.CreateContainerResponse{ContainerId: "alpha.io__c1"}, nil)
			n.call("StartContainer", &runtimeapi.StartContainerRequest{ContainerId: "alpha.io__c1"}, nil, status.Error(codes.Internal, "no room"),
				"traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "authorization", "hunter2")
			records := store.await(t, 3)
			r := records[2]
			assert.Equal(t, "criproxy.call", r.GetEventName())
			assert.Equal(t, logs.SeverityNumber_SEVERITY_NUMBER_ERROR, r.GetSeverityNumber())
			assert.Regexp(t, `^StartContainer shop/web/nginx alpha.io__c1 of alpha.io: Internal after .*s: no room$`, r.GetBody().GetStringValue())
			got := attributesOf(r.GetAttributes())
			assert.NotEmpty(t, got["criproxy.duration_seconds"])
			delete(got, "criproxy.duration_seconds")
			assert.Equal(t, map[string]string{
				"event.name": "criproxy.call", "rpc.system": "grpc", "rpc.service": "runtime.v1.RuntimeService", "rpc.method": "StartContainer", "rpc.grpc.status_code": "13",
				"k8s.namespace.name": "shop", "k8s.pod.name": "web", "k8s.pod.uid": "uid-web", "k8s.container.name": "nginx", "container.id": "alpha.io__c1", "criproxy.id": "alpha.io__web",
				"criproxy.backend": "alpha.io", "criproxy.client": "kubelet", "criproxy.message": "no room", "criproxy.request_bytes": "14", "criproxy.reply_bytes": "0",
			}, got)
			assert.Equal(t, "4bf92f3577b34da6a3ce929d0e0e4736 00f067aa0ba902b7", fmt.Sprintf("%x %x", r.GetTraceId(), r.GetSpanId()))
			assert.Equal(t, "registry.example/nginx:1", attributesOf(records[1].GetAttributes())["container.image.name"])
			assert.Equal(t, "node-7", store.resource["k8s.node.name"])
			assert.Equal(t, "criproxy", store.resource["service.name"])
			assert.NotContains(t, fmt.Sprint(records), "hunter2")
		})
	}
}

func TestAChangeOfAConditionIsARecord(t *testing.T) {
	store, n := overHTTP(t), newNode(t)
	n.configure(config.Export{URL: store.url, Method: "NoSuch"})
	at, pods := time.Unix(1000, 0), 9
	n.rec.Change(capture.Change{Time: at, What: capture.Gone, Backend: "kata.io", Was: capture.Up, Since: at.Add(-time.Minute), Why: "connection refused", Pods: &pods})
	r := store.await(t, 1)[0]
	assert.Equal(t, "criproxy.change", r.GetEventName())
	assert.Equal(t, uint64(at.UnixNano()), r.GetTimeUnixNano())
	assert.Equal(t, "ERROR", r.GetSeverityText())
	assert.Equal(t, "kata.io is gone: connection refused (up for 1m0s before, 9 pods)", r.GetBody().GetStringValue())
	assert.Equal(t, map[string]string{
		"event.name": "criproxy.change", "criproxy.change": "gone", "criproxy.backend": "kata.io", "criproxy.message": "connection refused",
		"criproxy.was": "up", "criproxy.duration_seconds": "60", "criproxy.pods": "9",
	}, attributesOf(r.GetAttributes()))
}

// Calls that poll and succeed fast are counted.
func TestTheDefaultSendsWhatPeopleAskAbout(t *testing.T) {
	store, n := overHTTP(t), newNode(t)
	n.configure(config.Export{URL: store.url})
	n.list(50)
	n.call("ExecSync", &runtimeapi.ExecSyncRequest{ContainerId: "c"}, &runtimeapi.ExecSyncResponse{}, nil)
	n.call("ExecSync", &runtimeapi.ExecSyncRequest{ContainerId: "c"}, nil, status.Error(codes.DeadlineExceeded, "late"))
	n.call("ContainerStatus", &runtimeapi.ContainerStatusRequest{ContainerId: "c"}, nil, status.Error(codes.NotFound, "none"))
	n.sandbox("web", nil)
	n.end()
	var sent []string
	counts := map[string]string{}
	for _, r := range store.await(t, 5) {
		a := attributesOf(r.GetAttributes())
		if r.GetEventName() == "criproxy.count" {
			counts[a["rpc.method"]] = a["criproxy.count"]
			assert.NotEmpty(t, a["criproxy.duration_max_seconds"])
		} else {
			sent = append(sent, a["rpc.method"]+" "+a["rpc.grpc.status_code"])
		}
	}
	assert.Equal(t, []string{"ExecSync 4", "ContainerStatus 5", "RunPodSandbox 0"}, sent)
	assert.Equal(t, map[string]string{"ListPodSandbox": "50", "ExecSync": "1"}, counts)
}

func TestSlowCallsAreSentAndEndlessStreamsAreNot(t *testing.T) {
	n := newNode(t)
	s := &settings{Export: config.Export{Quiet: config.DefaultQuiet}}
	call := func(method string, took time.Duration) *calls.Call {
		return &calls.Call{Method: "/runtime.v1.RuntimeService/" + method, Took: took, Ended: true}
	}
	assert.False(t, s.sends(call("ListContainers", 999*time.Millisecond), n.recording.profile))
	assert.True(t, s.sends(call("ListContainers", time.Second), n.recording.profile))
	assert.True(t, s.sends(call("ExecSync", time.Second), n.recording.profile))
	assert.False(t, s.sends(call("GetContainerEvents", time.Hour), n.recording.profile))
}

func TestTheFilterIsThatOfTail(t *testing.T) {
	store, n := overHTTP(t), newNode(t)
	n.configure(config.Export{URL: store.url, Method: "List*|Run*", Status: "OK"})
	n.sandbox("web", status.Error(codes.Internal, "no"))
	n.list(2)
	n.sandbox("db", nil)
	n.end()
	var sent []string
	for _, r := range store.await(t, 4) {
		sent = append(sent, attributesOf(r.GetAttributes())["rpc.method"]+" "+r.GetEventName())
	}
	assert.Equal(t, []string{"ListPodSandbox criproxy.call", "ListPodSandbox criproxy.call", "RunPodSandbox criproxy.call", "RunPodSandbox criproxy.count"}, sent)
	assert.ErrorContains(t, CheckExport(&config.Export{Status: "Nope"}), `export: -status: "Nope" matches no code`)
	assert.ErrorContains(t, CheckExport(&config.Export{Quiet: "[x"}), "export.quiet")
}

func TestBodiesAreSentOnlyIfAskedForAndWithoutSecrets(t *testing.T) {
	for _, bodies := range []bool{false, true} {
		store, n := overHTTP(t), newNode(t)
		n.configure(config.Export{URL: store.url, Method: "*", Bodies: bodies})
		n.call("CreateContainer", &runtimeapi.CreateContainerRequest{PodSandboxId: "web", Config: &runtimeapi.ContainerConfig{
			Command: []string{"serve"}, Envs: []*runtimeapi.KeyValue{{Key: "PASSWORD", Value: []byte("hunter2")}},
		}}, &runtimeapi.CreateContainerResponse{ContainerId: "c1"}, nil)
		a := attributesOf(store.await(t, 1)[0].GetAttributes())
		assert.Equal(t, bodies, strings.Contains(a["criproxy.request"], "serve"), a)
		assert.Equal(t, bodies, strings.Contains(a["criproxy.reply"], "c1"), a)
		assert.NotContains(t, fmt.Sprint(a), "hunter2")
	}
	store, n := overHTTP(t), newNode(t)
	n.recording.cfg.UnsafeRaw = true // the recorder has secrets
	n.configure(config.Export{URL: store.url, Method: "*", Bodies: true})
	n.list(1)
	assert.NotContains(t, attributesOf(store.await(t, 1)[0].GetAttributes()), "criproxy.request")
}

// The recorded traffic of a kubelet with 100 pods on two runtimes: calls a second that read, and how many exec probes.
var quiet = map[string]float64{
	"Version": 7.7, "ListContainers": 1.69, "ListPodSandbox": 1.57, "ContainerStatus": 10.29, "ListContainerStats": 0.15, "Status": 0.2,
	"ListImages": 0.04, "ImageFsInfo": 0.09, "RuntimeConfig": 0.02, "ExecSync": 1,
}

func TestAQuietNodeOf100PodsSendsLittle(t *testing.T) {
	store, n := overHTTP(t), newNode(t)
	n.configure(config.Export{URL: store.url})
	const minute = 60
	for method, rate := range quiet {
		for range int(rate*minute) + 1 {
			n.call(method, &runtimeapi.VersionRequest{}, &runtimeapi.VersionResponse{}, nil)
		}
	}
	n.end()
	records := store.await(t, len(quiet))
	assert.Len(t, records, len(quiet), "one count a minute for each method")
	size := proto.Size(&logs.ScopeLogs{LogRecords: records})
	t.Logf("%d bytes a minute, before they are compressed", size)
	assert.Less(t, size, minute*1000/10, "a tenth leaves room for what a node does")
}

// A store that does not take records at once gets each later, once.
func TestRecordsWaitForAStoreThatCannotTakeThem(t *testing.T) {
	refusing := func(code int, headers ...string) func(*testing.T, *fakeStore) {
		return func(_ *testing.T, s *fakeStore) {
			s.refuse = func(w http.ResponseWriter) bool {
				if s.requests.Load() > 3 {
					return false
				}
				for _, h := range headers {
					name, value, _ := strings.Cut(h, ": ")
					w.Header().Set(name, value)
				}
				w.WriteHeader(code)
				return true
			}
		}
	}
	for name, prepare := range map[string]func(*testing.T, *fakeStore){
		"full":         refusing(http.StatusTooManyRequests),
		"starting":     refusing(http.StatusServiceUnavailable, "Retry-After: 0"),
		"behind proxy": refusing(http.StatusBadGateway),
		"hanging up": func(_ *testing.T, s *fakeStore) {
			s.refuse = func(w http.ResponseWriter) bool {
				if s.requests.Load() > 3 {
					return false
				}
				conn, _, err := w.(http.Hijacker).Hijack()
				if err == nil {
					_ = conn.Close()
				}
				return true
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			store, n := overHTTP(t), newNode(t)
			prepare(t, store)
			n.configure(config.Export{URL: store.url})
			n.sandbox("web", nil)
			n.sandbox("db", nil)
			store.await(t, 2)
			n.end()
			assert.Equal(t, 2, len(store.bodies()))
			assert.Equal(t, uint64(2), n.counts.state().Sent)
			assert.Empty(t, n.counts.state().Lost)
			assert.Empty(t, n.counts.state().Error)
		})
	}
}

func TestAStoreOverGRPCMayAskForMoreTime(t *testing.T) {
	store, n := overGRPC(t), newNode(t)
	busy, err := status.New(codes.ResourceExhausted, "busy").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Millisecond)})
	require.NoError(t, err)
	store.answer = func() (*collector.ExportLogsServiceResponse, error) {
		if store.requests.Load() <= 2 {
			return nil, busy.Err()
		}
		return nil, nil
	}
	n.configure(config.Export{URL: store.url})
	n.sandbox("web", nil)
	store.await(t, 1)
	assert.Equal(t, int64(3), store.requests.Load())
}

func TestAStoreThatIsGoneGetsTheRecordsWhenItIsBack(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	require.NoError(t, l.Close())
	for _, url := range []string{"http://" + address, "http://" + address + "/v1/logs"} {
		n := newNode(t)
		n.configure(config.Export{URL: url})
		n.sandbox("web", nil)
		require.Eventually(t, func() bool { return n.State().Error != "" }, time.Minute, 5*time.Millisecond)
		assert.False(t, n.State().Failing.IsZero())
		l, err := net.Listen("tcp", address)
		require.NoError(t, err)
		store := &fakeStore{}
		if n.now.Load().GRPC() {
			store.serve(t, l)
		} else {
			server := &http.Server{Handler: store}
			go server.Serve(l)
			t.Cleanup(func() { server.Close() })
		}
		store.await(t, 1)
		require.Eventually(t, func() bool { return n.State().Failing.IsZero() }, time.Minute, 5*time.Millisecond)
		n.end()
		_ = l.Close()
	}
}

// What a store refuses for good is lost, counted, and does not stop the rest.
func TestAStoreThatSpeaksNonsenseLosesOnlyWhatItGets(t *testing.T) {
	for name, answer := range map[string]func(w http.ResponseWriter){
		"a page":      func(w http.ResponseWriter) { fmt.Fprint(w, "<html>Please log in</html>") },
		"no protobuf": func(w http.ResponseWriter) { w.Header().Set("Content-Type", protobuf); fmt.Fprint(w, "\xff\xff\xff") },
		"not found":   func(w http.ResponseWriter) { w.WriteHeader(http.StatusNotFound) },
		"elsewhere":   func(w http.ResponseWriter) { w.Header().Set("Location", "http://127.0.0.1:1/"); w.WriteHeader(307) },
		"refused":     func(w http.ResponseWriter) { http.Error(w, "who are you?", http.StatusUnauthorized) },
		"endless":     func(w http.ResponseWriter) { w.Write(make([]byte, 10<<20)) },
		"a part": func(w http.ResponseWriter) {
			b, _ := proto.Marshal(&collector.ExportLogsServiceResponse{PartialSuccess: &collector.ExportLogsPartialSuccess{RejectedLogRecords: 1, ErrorMessage: "too old"}})
			w.Header().Set("Content-Type", protobuf)
			w.Write(b)
		},
		"more than there are": func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"partialSuccess": {"rejectedLogRecords": "99999"}}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			store, n := overHTTP(t), newNode(t)
			store.refuse = func(w http.ResponseWriter) bool {
				if store.requests.Load() > 1 {
					return false
				}
				answer(w)
				return true
			}
			n.configure(config.Export{URL: store.url})
			n.sandbox("web", nil)
			require.Eventually(t, func() bool { return n.State().Lost[lostRefused] == 1 }, time.Minute, 5*time.Millisecond)
			assert.NotEmpty(t, n.State().Error)
			n.sandbox("db", nil)
			store.await(t, 1)
			n.end()
			assert.Contains(t, store.bodies()[0], "shop/db")
			assert.Equal(t, uint64(1), n.counts.state().Lost[lostRefused])
			assert.Equal(t, uint64(1), n.counts.state().Sent)
		})
	}
}

func TestAnHTTPStoreAtTheURLOfAGRPCOneIsSaid(t *testing.T) {
	store, n := overHTTP(t), newNode(t)
	n.configure(config.Export{URL: strings.TrimSuffix(store.url, "/v1/logs")})
	n.sandbox("web", nil)
	require.Eventually(t, func() bool { return n.State().Error != "" }, time.Minute, 5*time.Millisecond)
	assert.Equal(t, 0, len(n.State().Lost), "it waits for a store")
	n.times.last = time.Millisecond
}

// hanging returns the address of a store that answers nothing: the kernel takes connections, and nobody accepts them.
func hanging(t *testing.T) (url string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, l.Close()) })
	return "http://" + l.Addr().String()
}

// The oldest records go when too many wait, and the rest is counted when the process ends.
func TestAStoreThatHangsCostsABoundedAmountOfMemory(t *testing.T) {
	for _, path := range []string{"", "/v1/logs"} {
		n := newNode(t)
		n.times.last = time.Millisecond
		n.configure(config.Export{URL: hanging(t) + path})
		const all = 1000
		for range all {
			n.put(newRecord("criproxy.call", time.Now(), true, strings.Repeat("x", 10_000)))
		}
		assert.Greater(t, n.State().Lost[lostFull], uint64(100))
		n.queue.mu.Lock()
		size := n.queue.size
		n.queue.mu.Unlock()
		assert.LessOrEqual(t, size, maxQueued)
		n.end()
		lost := n.counts.state().Lost
		assert.Equal(t, uint64(all), lost[lostFull]+lost[lostStopped], "each is counted: %v", lost)
	}
}

func TestReloadsSendWhatWaitsToTheNewStore(t *testing.T) {
	store, n := overHTTP(t), newNode(t)
	full := overGRPC(t)
	full.answer = func() (*collector.ExportLogsServiceResponse, error) {
		return nil, status.Error(codes.Unavailable, "full")
	}
	n.configure(config.Export{URL: full.url})
	n.sandbox("web", nil)
	require.Eventually(t, func() bool { return n.State().Error != "" }, time.Minute, 5*time.Millisecond)
	n.configure(config.Export{URL: store.url})
	store.await(t, 1)
	n.configure(config.Export{URL: store.url})
	n.configure(config.Export{})
	assert.Nil(t, n.State(), "nothing is exported any more")
	n.sandbox("unseen", nil)
	n.configure(config.Export{URL: store.url})
	n.sandbox("db", nil)
	n.end()
	assert.Len(t, store.bodies(), 2, "not what came meanwhile, and nothing twice")
	assert.Contains(t, store.bodies()[1], "shop/db")
	n.configure(config.Export{URL: store.url}) // after the end
	assert.Nil(t, n.State())
}

func TestHeadersAreReadForEachRequest(t *testing.T) {
	store, n := overHTTP(t), newNode(t)
	file := filepath.Join(t.TempDir(), "token")
	n.configure(config.Export{URL: store.url, Headers: config.Headers{"authorization": "@" + file, "x-scope-orgid": "shop"}})
	n.sandbox("web", nil)
	require.Eventually(t, func() bool { return n.State().Error != "" }, time.Minute, 5*time.Millisecond)
	assert.Contains(t, n.State().Error, "export.headers.authorization: open "+file)
	write := func(token string) { // at once, because the exporter may read the file at any time
		require.NoError(t, os.WriteFile(file+".new", []byte(token), 0o600))
		require.NoError(t, os.Rename(file+".new", file))
	}
	write("Bearer one\n")
	store.await(t, 1)
	assert.Equal(t, "Bearer one", store.headers.Get("Authorization"))
	assert.Equal(t, "shop", store.headers.Get("X-Scope-OrgID"))
	write("Bearer two")
	n.sandbox("db", nil)
	store.await(t, 2)
	assert.Equal(t, "Bearer two", store.headers.Get("Authorization"))
}

// A store whose certificate an authority of its own has signed gets records, over HTTP and gRPC, and nobody else does.
func TestAStoreIsReachedOverTLS(t *testing.T) {
	for _, over := range []string{"http", "grpc"} {
		t.Run(over, func(t *testing.T) {
			s := &fakeStore{}
			server := httptest.NewTLSServer(s)
			t.Cleanup(server.Close)
			s.url = server.URL + "/v1/logs"
			if over == "grpc" {
				l, err := net.Listen("tcp", "127.0.0.1:0")
				require.NoError(t, err)
				s.url = "https://" + l.Addr().String()
				s.serve(t, l, grpc.Creds(credentials.NewServerTLSFromCert(&server.TLS.Certificates[0])))
			}
			ca := filepath.Join(t.TempDir(), "ca.pem")
			require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600))
			n := newNode(t)
			secured := func(of config.TLS) Secured { return listen.NewCredentials(&of).(*listen.Credentials) }
			n.Configure(config.Export{URL: s.url, Quiet: config.DefaultQuiet}, secured(config.TLS{}))
			n.sandbox("web", nil)
			require.Eventually(t, func() bool { return n.State().Error != "" }, time.Minute, 5*time.Millisecond)
			assert.Contains(t, n.State().Error, "certificate")
			assert.Empty(t, s.bodies())
			n.Configure(config.Export{URL: s.url, Quiet: config.DefaultQuiet, TLS: &config.TLS{CA: ca}}, secured(config.TLS{CA: ca}))
			s.await(t, 1)
		})
	}
}

// Without a store there is no goroutine: TestMain would find one.
func TestWithoutAStoreNothingIsDone(t *testing.T) {
	n := newNode(t)
	n.names = func() calls.Namer { t.Fatal("it begins"); return nil }
	n.configure(config.Export{})
	n.sandbox("web", nil)
	assert.Nil(t, n.State())
	var none *Exporter // of a proxy that records nothing
	none.Configure(config.Export{URL: "http://127.0.0.1:1"}, nil)
	assert.Nil(t, none.State())
	none.Stop()
}

// A client can invent methods and codes.
func TestCountsAreBounded(t *testing.T) {
	n := newNode(t)
	left := tally{}
	for i := range 1000 {
		left.add(&calls.Call{Method: fmt.Sprintf("/evil/M%d", i), Code: codes.Code(1000 + i)}, n.recording.Schema)
	}
	assert.Len(t, left, 1, slices.Collect(maps.Keys(left)))
}
