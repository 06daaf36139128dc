package telemetry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc/metadata"
	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/base/recovery"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/profile"
)

// Recording is the flight recorder of a proxy, with its readers: the log, the file of -capture,
// dumps and the admin socket.
type Recording struct {
	cfg     *config.Config
	rec     *capture.Recorder // nil if nothing is recorded
	profile *director.Profile
	Schema  *codec.Schema // of all versions
	// descriptors describe an API that this program was not built with, for the readers of
	// recordings; nil for CRI.
	descriptors []byte
	about       map[string]string // the About of a capture.FileHeader
	log         callLog
	polls       polls
	restored    []string // files of earlier processes that were read, once the recorder has what they had

	// Conditions returns the backends with their conditions, for the headers of recordings. Optional.
	Conditions func() []capture.HeaderBackend

	captureFailures atomic.Int64 // how often writing the capture began to fail
	captureFails    atomic.Bool  // it fails now
}

// NewRecording builds the flight recorder that cfg asks for. It does not record fields that the
// profile calls secret. own is the schema of an API that this program was not built with, nil for
// CRI.
func NewRecording(cfg *config.Config, d director.Config, own *codec.Schema) (*Recording, error) {
	r := &Recording{cfg: cfg, profile: d.Profile, Schema: d.Profile.AllVersions(d.Schema)}
	if len(own.Methods()) > 0 {
		r.descriptors = own.Descriptors()
		var err error
		if r.about, err = d.Profile.Shown(d.Schema); err != nil {
			return nil, err
		}
	}
	return r, r.open()
}

func (r *Recording) open() error {
	if r.cfg.FlightRecorder < 0 {
		return nil
	}
	secrets, err := r.profile.Secrets(r.Schema)
	if err != nil {
		return err
	}
	r.rec = capture.NewRecorder(capture.Config{
		Bytes:     r.cfg.FlightRecorder,
		Redact:    capture.NewRedactor(r.Schema, secrets),
		UnsafeRaw: r.cfg.UnsafeRaw,
		Schema:    r.Schema,
		Notable:   r.Notable,
	})
	r.log = callLog{schema: r.Schema, profile: r.profile, text: secrets.Text()}
	r.log.text.Unsafe = r.cfg.UnsafeRaw
	return nil
}

// Notable reports whether calls of a method are kept as long as failures: those that change something. kubelet's exec probes
// do not, and are so many that they would push failures out.
func (r *Recording) Notable(method string) bool {
	return r.profile.LogLevel(method) == profile.StateChanging && calls.ShortMethod(method) != "ExecSync"
}

// tracer passes the legs of calls to the recorder. A leg is recorded from its beginning, or, if it is a poll of criproxy itself that is
// not due, only at its end, and only if it has failed.
type tracer struct {
	rec   *capture.Recorder
	polls *polls
	peer  func(context.Context) capture.Peer
}

// Begin implements [director.Tracer].
func (t tracer) Begin(ctx context.Context, info director.LegInfo) (context.Context, director.Leg) {
	return t.begin(ctx, info, &capture.Leg{})
}

// begin is Begin, for a leg in memory of the caller.
func (t tracer) begin(ctx context.Context, info director.LegInfo, leg *capture.Leg) (context.Context, director.Leg) {
	of := capture.LegInfo{Method: info.Method, Client: info.Client, Metadata: info.Metadata}
	if !info.Client {
		of.Backend = director.Backend{Name: info.Backend}.String()
		of.Metadata, _ = metadata.FromOutgoingContext(ctx)
	}
	of.Metadata = withPlugins(ctx, of.Metadata)
	if !info.Client && !info.Endless && !capture.IsOfClient(ctx) && !t.polls.due(of.Backend, of.Method, time.Now()) {
		return ctx, &pollLeg{ctx: ctx, rec: t.rec, of: of}
	}
	if info.Client && t.peer != nil {
		of.Peer = t.peer(ctx)
	}
	return t.rec.BeginIn(ctx, of, leg), leg
}

// Tracer returns the tracer for the director, or nil if nothing is recorded. peer says which process made the call of a
// context; nil leaves that out.
func (r *Recording) Tracer(peer func(context.Context) capture.Peer) director.Tracer {
	if r.rec == nil {
		return nil
	}
	return tracer{r.rec, &r.polls, peer}
}

// Header describes the source of the events.
func (r *Recording) Header() capture.FileHeader {
	h := capture.FileHeader{
		Version: capture.Version, Program: "criproxy " + config.Version, Created: time.Now().UTC(),
		Listen: r.cfg.Listen, UnsafeRaw: r.cfg.UnsafeRaw, Descriptors: r.descriptors, About: r.about,
	}
	if r.Conditions != nil {
		h.Backends = r.Conditions()
		h.Changes = len(h.Backends) > 0
	}
	return h
}

// Follow returns a follower that reads the events, from the oldest one on. The caller must not call
// it if nothing is recorded.
func (r *Recording) Follow() *capture.Follower { return r.rec.Follow(true) }

// RecordingState is the state of the flight recorder and of the file of -capture.
type RecordingState struct {
	Recorded, Missed uint64 // events
	File             bool   // calls are written to a file
	Failing          bool   // the file cannot be written now
	Failures         int64  // how often writing to the file began to fail
}

// State returns the state of the recorder and of the file, or nil if nothing is recorded.
func (r *Recording) State() *RecordingState {
	if r.rec == nil {
		return nil
	}
	return &RecordingState{
		Recorded: r.rec.Recorded(), Missed: r.rec.Missed(),
		File: r.cfg.Capture.Path != "", Failing: r.captureFails.Load(), Failures: r.captureFailures.Load(),
	}
}

// Reach returns how far back the recorder reaches, or nil if nothing is recorded.
func (r *Recording) Reach() *admin.Recorder {
	if r.rec == nil {
		return nil
	}
	reach := r.rec.Reach()
	return &admin.Recorder{Events: r.rec.Recorded(), Oldest: reach.All, Notable: reach.Notable}
}

// Start begins to write the recorded events: to the log, to the file of -capture, and to a file
// whenever the process gets SIGUSR1. stop ends the recording, and returns when all of it is written.
func (r *Recording) Start() (stop func(), err error) {
	if r.rec == nil {
		return func() {}, nil
	}
	var wg sync.WaitGroup
	stopping := make(chan struct{})
	serving, stopped := context.WithCancel(context.Background())
	wg.Go(func() { // what it has not compressed in the end, the Keeper has
		recovery.Keep(serving, "compressing the recording", func() { r.rec.Archive(serving) })
	})
	if path := r.cfg.Capture.Path; path != "" {
		w, err := capture.Create(capture.FileConfig{
			Path: path, Header: r.Header, Schema: r.Schema,
			MaxBytes: r.cfg.Capture.MaxBytes, MaxFiles: r.cfg.Capture.MaxFiles,
		})
		if err != nil {
			stopped()
			return nil, err
		}
		f := r.rec.FollowOwn()
		wg.Go(func() {
			r.writeAll(w, f, stopping)
			if err := w.Close(); err != nil {
				klog.ErrorS(err, "The end of the capture could not be written", "file", path)
			}
		})
	}
	if klog.V(2).Enabled() {
		f := r.rec.FollowOwn()
		wg.Go(func() { recovery.Keep(context.Background(), "logging calls", func() { r.log.run(f) }) })
	}
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR1)
	wg.Go(func() {
		for range asked {
			var path string
			var n int
			if err := recovery.Do("dumping", func() (err error) { path, n, err = r.dump(); return err }); err != nil {
				klog.ErrorS(err, "The recording could not be dumped")
			} else {
				klog.InfoS("Dumped the recording", "file", path, "events", n)
			}
		}
	})
	return func() {
		signal.Stop(asked)
		close(asked)
		r.rec.Close()
		stopped()
		close(stopping)
		wg.Wait()
	}, nil
}

// captureRetry is how long the capture waits before it tries again to write.
const captureRetry = time.Second

// writeAll writes the events that f reads, until the recorder is closed. While writing fails, for
// example because the disk is full, calls go on without being captured.
func (r *Recording) writeAll(w *capture.Writer, f *capture.Follower, stopping <-chan struct{}) {
	write := func() error {
		if r.captureFails.Load() {
			if err := resume(w, f); err != nil {
				return err
			}
			r.captureFails.Store(false)
			klog.InfoS("Calls are captured again; the file says how many events are missing", "file", r.cfg.Capture.Path)
		}
		return w.Run(context.Background(), f)
	}
	for {
		err := recovery.Do("writing a capture", write)
		if err == nil {
			return
		}
		if !r.captureFails.Swap(true) {
			r.captureFailures.Add(1)
			klog.ErrorS(err, "Calls are not captured while the file cannot be written", "file", r.cfg.Capture.Path)
		}
		select {
		case <-time.After(captureRetry):
		case <-stopping:
			return // the latest attempt has just failed
		}
	}
}

// resume writes one event, to find out whether writing works again.
func resume(w *capture.Writer, f *capture.Follower) error {
	var ev capture.Event
	if err := f.Next(context.Background(), &ev); err != nil {
		return nil // the recorder is closed; Run notices that
	}
	if err := w.Write(&ev); err != nil {
		return err
	}
	return w.Flush()
}

// dumps is how many dumps remain on disk.
const dumps = 5

// dumpFile returns the path of the file for SIGUSR1, in the state folder if there is one.
func (r *Recording) dumpFile() string {
	dir := cmp.Or(r.cfg.StateDir, os.TempDir())
	if os.MkdirAll(dir, 0o700) != nil {
		dir = os.TempDir()
	}
	return filepath.Join(dir, fmt.Sprintf("criproxy-dump-%d.jsonl", os.Getpid()))
}

// dump writes the recorded events to a file. It returns its name and the number of events.
func (r *Recording) dump() (path string, n int, err error) {
	path = r.dumpFile()
	w, err := capture.Create(capture.FileConfig{Path: path, Header: r.Header, Schema: r.Schema, MaxFiles: dumps})
	if err != nil {
		return path, 0, err
	}
	last := r.rec.Recorded()
	f := r.rec.Follow(true)
	var ev capture.Event
	for f.TryNext(&ev) && err == nil {
		n++
		if err = w.Write(&ev); ev.Seq >= last {
			break
		}
	}
	return path, n, errors.Join(err, w.Close())
}

// ServeEvents answers GET /events with a capture, as a binary log that begins with the recorded
// events; with follow=true later ones follow. A client that reads too slowly misses events, and
// the capture says how many. since and until select events by how long ago they were, last=N the latest N, and with
// after=SEQ also those before them whose numbers are larger. With method=PATTERN and failed=true, older parts of the
// recording in which no call is like that may be left out, and with shown, most of the calls that had ended so long ago.
// large=clients leaves out large messages between criproxy and the runtimes, large=new also those that say nothing new.
// With blocks=1 the answer is a file of blocks of this version instead, which takes next to no time: the client decodes it.
func (r *Recording) ServeEvents(w http.ResponseWriter, request *http.Request) {
	if r.rec == nil {
		http.Error(w, "nothing is recorded: this criproxy was started with -flight-recorder -1", http.StatusConflict)
		return
	}
	follow := request.FormValue("follow") == "true"
	recorded := r.rec.Recorded()
	want, err := wanted(request, time.Now(), recorded)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	oldest := r.rec.Reach().First
	h := r.Header()
	var blocks [][]byte
	if !follow && request.FormValue("blocks") == "1" {
		blocks, recorded = r.rec.Blocks(&h, want)
	}
	w.Header().Set(admin.RecordedHeader, strconv.FormatUint(recorded, 10))
	w.Header().Set(admin.OldestHeader, strconv.FormatUint(oldest, 10))
	w.Header().Set(admin.InheritedHeader, strconv.FormatUint(r.rec.Inherited(), 10))
	for _, b := range blocks {
		if _, err := w.Write(b); err != nil {
			return // the client has left
		}
	}
	if blocks != nil {
		return
	}
	w.Header().Set("Content-Type", "application/x-grpc-binarylog")
	f := r.rec.FollowWanted(want)
	enc := capture.NewEncoder(capture.Binlog, r.Schema)
	buf := enc.Begin(nil, &h)
	flush := func() bool {
		if _, err := w.Write(buf); err != nil {
			return false // the client has left
		}
		buf = buf[:0]
		return http.NewResponseController(w).Flush() == nil
	}
	last := recorded // number of the last event of the answer
	if follow {
		last = math.MaxUint64
	}
	var ev capture.Event
	for {
		if !f.TryNext(&ev) {
			if !flush() || !follow {
				return
			}
			if f.Next(request.Context(), &ev) != nil { // the process ends: what it says last is there already
				follow, last = false, r.rec.Recorded()
				continue
			}
		}
		buf = enc.Append(buf, &ev)
		if len(buf) > 1<<20 && !flush() {
			return
		}
		if ev.Seq >= last && ev.Kind != capture.Missed {
			flush()
			return
		}
	}
}

// wanted returns which events a request asks for. recorded is how many there are.
func wanted(request *http.Request, now time.Time, recorded uint64) (want capture.Want, err error) {
	want.Failed = request.FormValue("failed") == "true"
	want.Large = map[string]capture.Large{"clients": capture.LargeFront, "new": capture.LargeNew}[request.FormValue("large")]
	if method := request.FormValue("method"); method != "" {
		want.Method = func(m string) bool { return calls.MatchesMethod(method, m) }
	}
	for name, t := range map[string]*time.Time{"since": &want.Since, "shown": &want.Shown, "until": &want.Until} {
		if s := request.FormValue(name); s != "" {
			ago, err := time.ParseDuration(s)
			if err != nil {
				return want, fmt.Errorf("%s=%s: want how long ago, such as 1h30m", name, s)
			}
			*t = now.Add(-ago)
		}
	}
	if s := request.FormValue("last"); s != "" {
		last, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return want, fmt.Errorf("last=%s: want a number of events", s)
		}
		want.From = recorded - min(last, recorded) + 1
		if after, err := strconv.ParseUint(request.FormValue("after"), 10, 64); err == nil {
			want.From = min(want.From, after+1)
		}
	}
	return want, nil
}
