package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"k8s.io/klog/v2"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/director/dial"
	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/base/host"
	"github.com/criproxy/criproxy/internal/base/recovery"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/cri"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/observe/telemetry"
	"github.com/criproxy/criproxy/internal/server/limits"
	"github.com/criproxy/criproxy/internal/server/listen"
)

// stack is the way to one runtime: the socket, the limits, and a link of its [backend.Backend], which outlives
// the stack. A single runtime has no cache, because if it is gone, so is the node: its link passes every call to a [backend.Bridge].
//
// An assembly makes it, p.start runs it, and when a reload has replaced it, it stays until the last call that began with it has
// ended. Of several stacks to one runtime only the newest notes its condition. All that is not atomic is set before the backend
// is in use, except stop.
type stack struct {
	cfg config.Backend
	key string // see stackKey
	cri bool   // it is a container runtime
	// separator is the text between its name and its ids.
	separator string
	alive     string // the method that shows that it answers, and which versions it speaks; empty if the profile names none
	conn      *dial.Conn
	calls     *limits.Calls      // under way
	backend   *backend.Backend   // takes the calls; it belongs to the Set
	link      *backend.Link      // of backend
	cached    bool               // backend has a cache
	stop      context.CancelFunc // nil until it runs; only the proxy uses it

	answers *answers // of all backends
	changes *telemetry.Changes
	prefix  string                                  // of its ids, as clients see them
	next    atomic.Pointer[stack]                   // the stack to the same runtime that has replaced this one
	retired atomic.Bool                             // another stack to the runtime reports its condition, or none
	driver  atomic.Pointer[runtimeapi.CgroupDriver] // nil until the backend has said it
	process atomic.Value                            // the string that identifies what serves its socket; empty if that is not known
	fresh   chan struct{}                           // has an element after a new connection, until the runtime is asked what it is
}

// String returns the name of the backend for people.
func (b *stack) String() string { return director.Backend{Name: b.cfg.Name}.String() }

// newStack builds the stack for the i-th runtime of cfg, with the backend that s has staged for it: a connection, which finds
// out what the runtime speaks, with a bound on the calls of clients; and the link, with a cache or without. It connects to nothing.
// A proxy that only shows calls gets a connection that passes everything on as it is, without versions, cache and history.
func (p *Proxy) newStack(cfg *config.Config, i int, d director.Config, s *assembly) (*stack, error) {
	b := &stack{
		cfg: cfg.Backends[i], key: stackKey(cfg, i), cached: s.staged.cached,
		answers: &p.answers, changes: p.changes, fresh: make(chan struct{}, 1),
	}
	if p.shows {
		b.changes = telemetry.NewChanges(&telemetry.Recording{}, "") // only the backend itself knows its condition
	} else {
		b.cri, b.separator = IsCRI(d.Profile), d.Profile.Separator()
	}
	if i > 0 && cfg.IDs != config.NativeIDs {
		b.prefix = b.cfg.Name + b.separator
	}
	b.calls = limits.NewCalls(b.String(), cmp.Or(b.cfg.MaxCalls, config.DefaultMaxCalls))
	var err error
	b.conn, err = dial.New(dial.Config{
		Name:        b.cfg.Name,
		Address:     b.cfg.Address,
		More:        b.cfg.Addresses,
		Balance:     b.cfg.Balance,
		Credentials: listen.NewCredentials(b.cfg.TLS),
		Profile:     d.Profile,
		Schema:      d.Schema,
		Conversions: d.Conversions,
		MaxMessage:  cfg.MaxMessageBytes,
		GRPC:        dataPaths[cfg.DataPath].grpc,
		Budget:      p.memory,
		Dial:        b.noting(p.machine.Dial),
		Admit:       b.calls.Admit,
		Via:         p.via,
		Watch:       func(err error) { b.link.Reached(err) },
		Primary:     i == 0,
		Tracer:      d.Tracer,
		Lost:        p.losses.Of(b.String()),
	})
	if err != nil {
		return nil, err
	}
	if p.shows {
		return b, b.stage(s, backend.Config{Next: b.conn, Silence: cfg.GoneAfter})
	}
	// Calls come in the newest version of the API; the connection converts them.
	pkg := d.Profile.Versions[0].Package
	if d.Profile.Probe != "" {
		b.alive = "/" + pkg + "." + d.Profile.Probe
	}
	link := backend.Config{Next: b.conn, Silence: cfg.GoneAfter, Before: stateOf(p.changes.Of(s.staged.Sources[b.String()]))}
	if !b.cached {
		bridge, err := backend.Bridge(b.conn, d.Profile.Known.Lists, d.Schema, pkg)
		if err != nil {
			return nil, err
		}
		link.Next = bridge
		return b, b.stage(s, link)
	}
	var equivalents func(string) []string
	if b.cri {
		equivalents = cri.ImageNames
	}
	link.Schema, link.Package, link.Spec, link.Equivalents = d.Schema, pkg, d.Profile.Known, equivalents
	link.Policy, link.Primary, link.Required, link.Absent = backend.Policy(b.cfg.Policy), i == 0, b.cfg.Required, b.conn.Absent
	link.Budget = cfg.ListBudget
	link.CacheHit = func(ctx context.Context, method string) { p.answers.count(ctx, b.String(), method) }
	link.Reserve, link.Streamed = limits.Keep, limits.Streamed
	if err := b.stage(s, link); err != nil {
		return nil, fmt.Errorf("backend %s: %w", b, err)
	}
	return b, nil
}

// stage makes the link of the backend. Its Watch finds the newest stack when it is called, not now: a link may notice something
// while a reload replaces its stack.
func (b *stack) stage(s *assembly, cfg backend.Config) (err error) {
	cfg.Name, cfg.Alive, cfg.Pass, cfg.Panicked = b.String(), b.alive, !b.cached, recovery.Report
	cfg.Watch = func(s backend.State) { b.changes.Do(func() { b.newest().changed(s) }) }
	b.backend = s.staged.Backends[b.String()]
	b.link, err = b.backend.Stage(cfg)
	return err
}

// stackKey is equal for two configurations whose i-th runtime needs the same stack of
// connections. A reload keeps such a stack, so the runtime keeps its connection. The key has all settings that any part of a
// stack reads when it is made; whoever adds one adds it here.
func stackKey(c *config.Config, i int) string {
	b := c.Backends[i]
	b.Handlers, b.Maps, b.Credentials = nil, nil, false // only the director uses these
	key, err := json.Marshal([]any{b, i == 0, len(c.Backends) == 1, c.IDs, c.MaxMessageBytes, c.ListBudget, c.GoneAfter, c.StateDir, c.Profile, c.Proto, c.ProtoPath, c.Sources, c.Rules})
	if err != nil {
		panic(err) // cannot happen: strings, numbers and booleans
	}
	return string(key)
}

// director returns the backend for the director. cfg may differ from the configuration of the stack
// in the settings that stackKey leaves out.
func (b *stack) director(cfg config.Backend) director.Backend {
	maps := map[string]map[string]string{criadapter.Handlers: cfg.Handlers}
	for kind, table := range cfg.Maps {
		maps[kind] = table
	}
	d := director.Backend{Name: cfg.Name, Conn: b.backend, Trusted: cfg.Credentials, Maps: maps}
	if b.cached {
		d.Known = b.backend
	}
	return d
}

// newest returns the stack that calls to the runtime use now. A stack points to the one that has replaced it, and never back.
func (b *stack) newest() *stack {
	for next := b.next.Load(); next != nil; next = b.next.Load() {
		b = next
	}
	return b
}

// end ends the stack, which no call uses any more. The [backend.Backend] ends with its last link.
func (b *stack) end() {
	b.stop()
	b.link.End()
}

// logWatched logs the condition of a backend without a cache. Clients get the runtime's own errors then, so the log says nothing
// of lists.
func (b *stack) logWatched(s backend.State, change capture.Change, changed bool) {
	switch {
	case s.Hangs():
		klog.ErrorS(s.Err, "Backend is gone: it hangs; calls wait for it, and fail on a new connection that it does not answer", "backend", b, "socket", b.cfg.Address)
	case errors.Is(s.Err, fs.ErrNotExist):
		klog.ErrorS(nil, "Backend cannot be reached: its socket does not exist yet; connecting as soon as it does", "backend", b, "socket", b.cfg.Address)
	case s.Condition == backend.Gone:
		klog.ErrorS(s.Err, "Backend cannot be reached; criproxy tries again", "backend", b, "socket", b.cfg.Address)
	case changed && change.Was != "":
		b.logUp(change)
	default:
		klog.InfoS("Backend is reachable", "backend", b, "socket", b.cfg.Address)
	}
}

// logUp logs that the backend is up again, after what, and for how long that lasted.
func (b *stack) logUp(change capture.Change) {
	klog.InfoS("Backend is up", append([]any{"backend", b, "socket", b.cfg.Address, "was", change.Was, "for", change.Lasted().Round(time.Millisecond)}, counts(change.Pods, change.Containers)...)...)
}

// counts returns keys and values for the log: how many pods and containers a condition concerns, as far as that is known.
func counts(pods, containers *int) (line []any) {
	if pods != nil {
		line = append(line, "pods", *pods)
	}
	if containers != nil {
		line = append(line, "containers", *containers)
	}
	return line
}

// condition returns the condition of the backend, as the history has it. Nothing else answers that question, so that log, status,
// metrics and events say the same.
func (b *stack) condition() telemetry.Condition { return b.changes.Of(b.String()) }

// stateOf returns the state in which a backend begins, from the condition that an earlier process or another stack has noted: the
// zero State if nothing is known.
func stateOf(k telemetry.Condition) backend.State {
	for _, c := range []backend.Condition{backend.Up, backend.Slow, backend.Gone} {
		if c.String() == k.State {
			s := backend.State{Condition: c, Since: k.Since}
			if why := cmp.Or(k.Now, k.Why); why != "" {
				s.Err = errors.New(why)
			}
			return s
		}
	}
	return backend.State{}
}

// concerned returns how many pods and containers of the backend its cache has, nil if it has no lists of them, or none yet.
func (b *stack) concerned() (pods, containers *int) {
	if !b.cached || !b.backend.State().Seen {
		return nil, nil
	}
	items := b.backend.Items()
	of := func(kind string) *int {
		if n, ok := items[kind]; ok && b.cri {
			return &n
		}
		return nil
	}
	return of("sandbox"), of("container")
}

// changed notes the condition of the backend, and logs one line for each change. What the line says depends on the policy: it
// says to an administrator what clients get from now on. It runs within [telemetry.Changes.Do].
func (b *stack) changed(s backend.State) {
	switch {
	case b.retired.Load():
		return
	case s.Condition == backend.Up && s.Err != nil:
		klog.ErrorS(s.Err, "The cache of a backend could not be written", "backend", b)
		return
	}
	to := capture.Change{Time: s.Since, What: s.Condition.String(), Backend: b.String()}
	if b.cached && s.First && s.Since.Before(b.condition().Since) {
		to.Time = time.Now() // the stack before this one noted a condition after this one had been staged
	}
	if s.Err != nil {
		to.Why = s.Err.Error()
	}
	to.Pods, to.Containers = b.concerned()
	change, changed := b.changes.Became(to)
	line := append([]any{"backend", b, "socket", b.cfg.Address}, counts(to.Pods, to.Containers)...)
	switch {
	case !b.cached:
		b.logWatched(s, change, changed)
	case !changed && s.Condition != backend.Up && s.First:
		klog.ErrorS(errors.New(change.Why), "Backend is still "+s.Condition.String()+", as before this process", append(line, "since", change.Time.Local().Format(time.DateTime))...)
	case !changed:
		// It goes on, for another reason.
	case s.Condition == backend.Up && change.Was == "":
		// At the start it is no news.
	case s.Condition == backend.Up:
		b.logUp(change)
	case s.Condition == backend.Slow && b.cfg.Policy == string(backend.Fail):
		klog.ErrorS(s.Err, "Backend is slow: clients wait for it", line...)
	case s.Condition == backend.Slow && b.cfg.Policy == string(backend.Skip):
		klog.ErrorS(s.Err, "Backend is slow: lists are without its pods, which kubelet may kill", line...)
	case s.Condition == backend.Slow:
		klog.ErrorS(s.Err, "Backend is slow: the cache gives the answers that are late, all else goes on as usual", line...)
	case !s.Seen:
		klog.ErrorS(s.Err, "Backend is gone, and was not seen since this node booted: lists leave it out while no process listens at its socket, and fail otherwise", line...)
	case b.cfg.Policy == string(backend.Fail):
		klog.ErrorS(s.Err, "Backend is gone: every list fails until it is back", line...)
	case b.cfg.Policy == string(backend.Skip):
		klog.ErrorS(s.Err, "Backend is gone: lists are without its pods, which kubelet may kill", line...)
	default:
		klog.ErrorS(s.Err, "Backend is gone: lists show its pods as they were, all else about them is Unavailable", line...)
	}
}

// ask makes a call of criproxy's own, as clients make theirs: the cache may answer it. Such an answer is not counted.
func (b *stack) ask(ctx context.Context, method string, request, reply any, options ...grpc.CallOption) error {
	return b.backend.Invoke(context.WithValue(ctx, ownCall{}, true), method, request, reply, options...)
}

// ownCall is a key of the contexts of criproxy's own calls.
type ownCall struct{}

// answers counts the answers from the caches of the backends. It is safe for concurrent use.
type answers struct {
	mu  sync.Mutex
	all map[[2]string]uint64 // :: name of the backend, and method
}

// count counts an answer, unless criproxy asked itself: to look must not change the figures.
func (a *answers) count(ctx context.Context, backend, method string) {
	if ctx.Value(ownCall{}) != nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.all == nil {
		a.all = map[[2]string]uint64{}
	}
	a.all[[2]string{backend, path.Base(method)}]++
}

// of returns the counts of a backend, by method.
func (a *answers) of(backend string) map[string]uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := map[string]uint64{}
	for of, n := range a.all {
		if of[0] == backend {
			all[of[1]] = n
		}
	}
	return all
}

// AskTimeout bounds how long a backend may take to answer calls that criproxy makes itself, apart from those of the cache and of
// reports, which have bounds of their own.
const AskTimeout = 5 * time.Second

// makeStateDir creates the state folder, unless there is only one runtime: then it logs that a folder which somebody has
// chosen does not exist. If the folder cannot be used, makeStateDir logs the consequence and clears it in cfg.
func makeStateDir(c *config.Config) {
	if c.StateDir == "" {
		return
	}
	err := host.Folder(c.StateDir, host.Alone) // lists show what the files there say
	if err == nil && len(c.Backends) > 1 {
		err = os.MkdirAll(c.StateDir, 0o700)
	}
	if err != nil {
		klog.ErrorS(err, "The state folder cannot be used: criproxy will forget the backends when it restarts; choose another one with -state-dir", "folder", c.StateDir)
		c.StateDir = ""
		return
	}
	if _, err := os.Stat(c.StateDir); errors.Is(err, fs.ErrNotExist) && c.StateDir != config.DefaultStateDir {
		klog.InfoS("The state folder does not exist, and for a single runtime criproxy makes none: it will forget the latest calls, errors and changes when it restarts; make the folder, and restart criproxy", "folder", c.StateDir)
	}
}
