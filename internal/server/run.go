package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/base/host"
	"github.com/criproxy/criproxy/internal/base/recovery"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/observe/telemetry"
	"github.com/criproxy/criproxy/internal/server/listen"
	"github.com/criproxy/criproxy/internal/transport"
)

// drainTime is how long calls under way may take to finish when criproxy stops. Clients that
// connect during that time wait for the next process, and kubelet waits for 5s.
const drainTime = 4 * time.Second

// greetTime is how long a new connection may take, when criproxy stops, to begin: with the TLS
// handshake, if the socket has certificates, and the preface of HTTP/2. Clients send both as soon as
// they connect.
const greetTime = 250 * time.Millisecond

// handoverGreet is greetTime after a handover. It is longer, because nothing waits for the old
// process, and no call may fail even if the machine is busy.
const handoverGreet = 2 * time.Second

// tracingURL returns the URL of the collector for spans. A proxy that only shows calls makes no
// spans, because they would change the metadata of calls.
func (p *Proxy) tracingURL() string {
	if p.shows {
		return ""
	}
	url, _ := p.Config().Collector()
	return url
}

// configureExport applies the setting export of cfg. Records that wait go to the new store.
func (p *Proxy) configureExport(cfg *config.Config) {
	var secured telemetry.Secured
	if t := cfg.Export.TLS; t != nil || strings.HasPrefix(cfg.Export.URL, "https:") {
		secured = listen.NewCredentials(cmp.Or(t, &config.TLS{})).(*listen.Credentials)
	}
	p.export.Configure(cfg.Export, secured)
}

// UseListener makes l the main socket of a proxy that does not open the sockets of its
// configuration, as in tests and in criproxy tap. The caller must call it before Run, in place of Open.
func (p *Proxy) UseListener(l net.Listener) {
	p.listens.Store(&[]*listen.Socket{listen.New(l, p.Config().Sockets()[0])})
	p.followPredecessor()
}

// Serving returns a channel that is closed when clients can connect.
func (p *Proxy) Serving() <-chan struct{} { return p.serving }

// Run serves the sockets until ctx ends or another process has taken over. Then it lets the calls
// under way finish, for a limited time. It returns when everything that it started has ended.
//
// The end undoes the beginning, in the order of the deferred calls below:
//
//	the calls have ended, or their time is up
//	the change "stopped" is noted, and the admin socket ends
//	the backends and all other goroutines of the group end
//	the latest errors, changes and calls are written to the state folder
//	the recording ends, with the log of calls and the capture; then the calls and spans that are sent elsewhere
//	a successor gets the last of what was recorded
//	the state folder is unlocked: whoever starts next finds all of it
func (p *Proxy) Run(ctx context.Context) error {
	defer p.unlock() // when all is written
	defer p.predecessor.close()
	stopSpans, err := p.spans.Start(ctx, p.tracingURL(), p.Config().Export.Node)
	defer func() {
		if p.successor != nil {
			p.parts.do("passing on the last calls", p.successor.finish)
		}
	}()
	var stopRecording func()
	if err == nil {
		defer p.parts.do("sending spans", stopSpans)
		defer p.parts.do("sending calls", p.export.Stop) // when the recording has ended
		stopRecording, err = p.record.Start()
	}
	if err != nil {
		p.Close()
		return err
	}
	defer p.parts.do("writing the log and the capture", stopRecording)
	defer p.parts.do("keeping the latest errors and calls", p.startKeeping())
	// The backends outlast ctx: calls under way need them until they have ended.
	connected, disconnect := context.WithCancel(context.WithoutCancel(ctx))
	defer p.group.Wait()
	defer func() {
		p.parts.do("ending mirrored requests", p.director.Close)
		p.disconnected.Store(true)
		disconnect()
	}()
	p.reloading.Lock() // until all runs, neither a reload nor a handover begins
	p.running = connected
	if !p.shows {
		p.changes.Follow(p.now.Load().staged.Sources, started, func(string) (pods, containers *int) { return nil, nil }, nil)
	}
	p.configureExport(p.Config())
	for _, b := range p.backends() {
		p.start(b)
	}
	if p.hooks != nil {
		p.goDo("asking plugins", func() { p.hooks.Run(connected) })
	}
	p.goKeep(connected, "comparing cgroup drivers", func() { watchDrivers(connected, p.backends) })
	p.goKeep(connected, "looking at the clock", func() { watchItself(connected, time.Tick(beat), time.Now, p.changes.Add) })
	p.goKeep(connected, "looking after socket files", func() { every(connected, restoreInterval, p.restoreSocketFiles) })
	for _, s := range p.sockets() {
		p.serve(s)
	}
	p.reloading.Unlock()
	stop := p.admin.Start()
	stopAdmin := sync.OnceFunc(func() { p.parts.do("ending the admin socket", stop) })
	defer stopAdmin()
	close(p.serving) // the process that handed over may leave
	p.begun()
	defer func() {
		p.predecessor.leave()
		p.changes.Add(capture.Change{Time: time.Now(), What: capture.Stopped})
	}()
	select {
	case <-p.failed.Done():
		// A process without one of its sockets would be noticed late. One that ends is started again by its supervisor, and says
		// then what is wrong with the socket.
		p.pause()
		p.server.Stop()
		return context.Cause(p.failed)
	case <-p.handedOver.Done():
		stopAdmin() // the other process answers from now on
		drained := make(chan struct{})
		p.goDo("telling the new process of long calls", func() { p.notifySuccessor(drained) })
		p.drain(ctx, p.patience(), handoverGreet)
		p.predecessor.await(ctx, p.patience()) // this process passes its notes of calls on
		close(drained)
	case <-ctx.Done():
		p.drain(ctx, drainTime, greetTime)
	}
	return nil
}

// Keep calls f, and calls it again after a panic, until f returns or ctx ends. A stopping proxy that
// waits for f logs it under the name what.
func (p *Proxy) Keep(ctx context.Context, what string, f func()) {
	p.parts.do(what, func() { recovery.Keep(ctx, what, f) })
}

// goKeep is Keep in a goroutine that Run waits for.
func (p *Proxy) goKeep(ctx context.Context, what string, f func()) {
	p.group.Go(func() { p.Keep(ctx, what, f) })
}

// every calls f at intervals until it returns false, or ctx ends.
func every(ctx context.Context, interval time.Duration, f func() (again bool)) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for again := true; again; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			again = f()
		}
	}
}

// goDo calls f, as a task named what, in a goroutine that Run waits for.
func (p *Proxy) goDo(what string, f func()) {
	p.group.Go(func() { p.parts.do(what, f) })
}

// serve serves the clients of s. Only a socket that is still in the configuration can end the process with an error.
func (p *Proxy) serve(s *listen.Socket) {
	s.Other, s.Room = p.other, p.room
	p.goDo("serving "+s.Path, func() {
		err := p.server.Serve(s, s.Handshake)
		if err == nil || errors.Is(err, transport.ErrServerStopped) || s.Access.Load() == nil {
			return
		}
		p.fail(fmt.Errorf("serving %s: %w", s.Path, err))
	})
}

// drain asks clients to connect again, to the next process. It gives calls under way the time bound
// to finish, and new connections the time greet to begin. Both times become shorter when ctx ends.
// After a handover, calls with a later deadline have until then.
//
// No call is cut off before its time is up. A client that was asked to connect again makes its next call on a new connection,
// which waits at the listening socket until the next process accepts it.
func (p *Proxy) drain(ctx context.Context, bound, greet time.Duration) {
	klog.InfoS("Stopping", p.underWay("drain", bound)...)
	p.changes.Add(capture.Change{Time: time.Now(), What: capture.Draining})
	p.draining.Store(true) // before clients are asked to connect again: they may first ask for health
	p.pause()
	silence := time.AfterFunc(greet, func() { p.server.EndSilent(nil) })
	defer silence.Stop()
	drained := make(chan struct{})
	defer close(drained)
	go func() { // ends with drain
		await(ctx, drained, bound, func() time.Duration {
			more := p.stays(ctx.Err() != nil)
			if more > 0 {
				klog.InfoS("This process stays for calls whose clients wait longer", p.underWay("for", more.Round(time.Second))...)
			}
			return more
		})
		if ctx.Err() != nil {
			silence.Reset(greetTime)
			await(context.Background(), drained, drainTime, func() time.Duration { return 0 })
		}
		select {
		case <-drained:
		default:
			klog.InfoS("Cutting off the calls that are still under way", p.underWay()...)
			p.server.Stop()
		}
	}()
	p.server.Drain(context.Background(), func() {
		// Not before clients were asked to connect again: a client opens the stream again at once, and
		// kubelet does so only five times in its life.
		p.callGroups.endStreams("criproxy: this process stops; open the stream again")
	})
}

// pause makes the proxy refuse reloads and handovers: from then on its sockets do not change. It waits for one that is under way.
func (p *Proxy) pause() {
	p.reloading.Lock()
	p.stopped = true
	p.reloading.Unlock()
}

// closeAll closes sockets that were opened and never served.
func closeAll(sockets []*listen.Socket) {
	for _, s := range sockets {
		_ = s.Close() // no client was served
	}
}

// openNew opens the sockets of cfg that are not open yet, or takes those that were inherited. If one cannot be opened, it
// closes the others again: a reload that fails has changed nothing.
func (p *Proxy) openNew(cfg *config.Config, inherited *listen.Inheritance) ([]*listen.Socket, error) {
	var opened []*listen.Socket
	for _, l := range cfg.Sockets() {
		if slices.ContainsFunc(p.sockets(), func(s *listen.Socket) bool { return host.SameSocket(s.Path, l.Path) }) {
			continue
		}
		s, err := listen.Open(l, cfg.Backends[0].Address, inherited)
		if err != nil {
			closeAll(opened)
			return nil, err
		}
		opened = append(opened, s)
	}
	return opened, nil
}

// replaceSockets serves the opened sockets, applies cfg to the others, and closes those that cfg
// no longer has. Clients that are connected to a closed socket are asked to leave as soon as they have no call under way. A socket
// that stays keeps its listener and its connections, whatever has changed in its settings.
func (p *Proxy) replaceSockets(cfg *config.Config, opened []*listen.Socket) {
	there := slices.Concat(p.sockets(), opened)
	var now []*listen.Socket
	for _, l := range cfg.Sockets() { // the main one first
		i := slices.IndexFunc(there, func(s *listen.Socket) bool { return host.SameSocket(s.Path, l.Path) })
		s := there[i] // exists: openNew opened the missing ones
		if err := listen.ChangeFile(s, l, cfg.Backends[0].Address); err != nil {
			klog.ErrorS(err, "A socket's file keeps the mode and owner that it has; change them by hand, or restart criproxy as root", "socket", s.Path)
			l.Mode, l.Owner = s.Cfg.Mode, s.Cfg.Owner // the next reload tries again
		}
		s.Configure(l)
		now = append(now, s)
	}
	p.listens.Store(&now)
	for _, s := range there {
		if !slices.Contains(now, s) {
			s.Access.Store(nil)
			_ = s.Close() // connections stay open
			p.server.EndSilent(s)
			listen.RemoveSocket(s.Path)
			p.goDo("ending the connections of "+s.Path, func() { p.endWhenIdle(s) })
		}
	}
	for _, s := range opened {
		p.serve(s)
		listen.StoreSocket(s.Listener, s.Path)
	}
}

// endWhenIdle ends the connections of a closed socket, which no bound counts any more, each as soon as it has no call. It returns
// when there is none left, or the process ends.
func (p *Proxy) endWhenIdle(s *listen.Socket) {
	some := func() bool { return p.server.Trim(s, 0, s.Silent).All > 0 }
	if some() {
		every(p.running, time.Second, some)
	}
}

// sockets returns the sockets of clients, the main one first. Open makes them, and a reload puts others in their place; the caller
// must not change them. A reader waits for neither a reload nor a handover.
func (p *Proxy) sockets() []*listen.Socket { return *p.listens.Load() }

// listening returns the sockets for a process that takes over: those of clients, the admin socket, and that of metrics.
func (p *Proxy) listening() []passedOn {
	var all []passedOn
	for _, s := range p.sockets() {
		all = append(all, passedOn{s.Path, s.Listener})
	}
	if l := p.admin.Listener; l != nil {
		all = append(all, passedOn{l.Addr().String(), l})
	}
	if l := p.admin.TCP; l != nil {
		all = append(all, passedOn{p.admin.TCPAt, l})
	}
	return all
}

// passedOn is a socket that another process gets.
type passedOn struct {
	path     string
	listener net.Listener
}
