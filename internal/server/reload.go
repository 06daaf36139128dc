package server

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// Reload applies cfg from the next call on. Calls under way finish with the old configuration. If
// cfg cannot be used, nothing changes. Otherwise Reload returns what has changed, in the words of its event.
//
// It has two halves. All that can fail comes first: reading the profile, opening sockets, compiling, staging the backends,
// the director and the watch for drift. What follows only swaps pointers and starts or ends goroutines; see reload for the order.
func (p *Proxy) Reload(cfg *config.Config) (changed string, err error) {
	p.reloading.Lock()
	defer p.reloading.Unlock()
	if p.stopped {
		return "", ErrStopped
	}
	before, was := p.addresses(), p.Config().Settings()
	if err := p.reload(cfg); err != nil {
		p.refuse(err)
		return "", err
	}
	waits := p.began.NeedsRestart(cfg)
	state := *p.config.Load()
	state.Reloads++
	state.ID = cfg.ID()
	state.Loaded, state.Failed, state.Error, state.NeedsRestart = time.Now(), time.Time{}, "", waits
	p.config.Store(&state)
	now := p.addresses()
	why := moved(before, now)
	why = append(why, was.Brief(p.Config().Settings())...)
	if len(waits) > 0 {
		why = append(why, "waits for a restart: "+strings.Join(waits, "; "))
	}
	if len(why) == 0 {
		why = []string{"no setting has changed"}
	}
	changed = strings.Join(why, "; ")
	p.changes.Add(capture.Change{Time: state.Loaded, What: capture.Reloaded, Why: changed, Addresses: now})
	return changed, nil
}

// moved says of each backend with another address than before where it is now. Its words are those that readers of the history
// find with [capture.NowAt].
func moved(before, now map[string]string) (said []string) {
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if was := before[name]; was != "" && was != now[name] {
			said = append(said, name+capture.NowAt+now[name]+", before at "+was)
		}
	}
	return said
}

// addresses returns where each backend is.
func (p *Proxy) addresses() map[string]string {
	at := map[string]string{}
	for _, b := range p.backends() {
		at[b.String()] = b.cfg.Address
	}
	return at
}

// Refuse notes that a new configuration could not be read, because of err, and returns err.
func (p *Proxy) Refuse(err error) error {
	p.reloading.Lock()
	defer p.reloading.Unlock()
	if p.stopped {
		return ErrStopped
	}
	p.refuse(err)
	return err
}

// refuse notes that a configuration was refused, for status, metrics and the history. p.reloading is held.
func (p *Proxy) refuse(err error) {
	state := *p.config.Load()
	state.Failures++
	state.Failed, state.Error = time.Now(), err.Error()
	p.config.Store(&state)
	p.changes.Add(capture.Change{Time: state.Failed, What: capture.Refused, Why: state.Error})
}

// reload applies cfg. p.reloading is held. What becomes of a runtime:
//
//	in the new configuration it has        its stack of connections           its backend.Backend
//	the same settings                      stays                              stays
//	other settings, or another address     is replaced, and ends after its    stays, with a new link
//	                                       last call
//	another name                           likewise                           stays, and is renamed
//	no place                               ends after its last call           is forgotten, with its file
//
// The state folder stays that of the start, but it may be made only now, or anew. The second half goes from the runtimes to the
// clients: first the backends, so that each that the new table names can take calls; then the director's table, from which calls
// choose; then what reports them; the backends that are gone, once no call that begins now can choose them; and the sockets,
// through which new clients come.
func (p *Proxy) reload(cfg *config.Config) (err error) {
	if err := p.changeable(); err != nil {
		return err
	}
	held := *cfg
	held.IDs = p.began.IDs // with other ids, kubelet would not recognize its pods, and kill them
	held.DataPath = p.began.DataPath
	held.StateDir = p.began.StateDir // the history and the recorder have their files there, from the start to the end
	cfg = &held
	makeStateDir(cfg) // there may be a second runtime now
	if owner, err := p.claim(cfg); err != nil {
		goWithout(cfg, err)
	} else if owner != p.owner {
		p.owner.release() // of a folder that somebody has removed
		p.owner = owner
	}
	// The first half: make all that is new beside the old.
	old := p.now.Load()
	a, err := Read(cfg)
	if err == nil {
		err = checkAccess(cfg, a)
	}
	if err != nil {
		return err
	}
	next, err := newAccess(cfg, a, p.access.Load())
	if err != nil {
		return err
	}
	opened, err := p.openNew(cfg, nil)
	if err != nil {
		return err
	}
	var useDirector, useDrift func() // bring what was staged into use, and cannot fail
	s, d, err := p.build(cfg, a, old)
	if err == nil {
		if useDirector, err = p.director.Stage(d); err == nil {
			useDrift, err = p.drift.Stage(driftConfig(cfg, d))
		}
		if err != nil {
			s.discard(old)
		}
	}
	if err != nil {
		closeAll(opened)
		return err
	}
	// From here on nothing can fail. What a call needs is there before the call can get so far.
	gone := p.replaceBackends(old, s)
	useDirector()
	p.now.Store(s)
	p.access.Store(next)
	p.memory.Configure(cfg)
	p.metrics.Know(d)
	useDrift()
	p.configureExport(cfg)
	p.endBackends(gone)
	p.replaceSockets(cfg, opened)
	s.staged.Commit() // last, because a disk that hangs holds it up
	if old.cfg.StateDir != cfg.StateDir {
		p.set.Save() // the next process must not read what an earlier one has left there
	}
	return nil
}

// replaceBackends brings the backends of s into use, and returns those that s no longer has.
//
// It counts pods and containers by the old names before, because a backend that is renamed or removed has an event with the
// numbers of then. The history notes no condition while the backends are exchanged: one that a backend has before is under its old
// name, and one that it has afterwards under its new one.
func (p *Proxy) replaceBackends(old, s *assembly) (gone []*stack) {
	type number struct{ pods, containers *int }
	numbers := map[string]number{}
	for _, b := range old.backends {
		pods, containers := b.concerned()
		numbers[b.String()] = number{pods, containers}
	}
	concerned := func(name string) (pods, containers *int) { return numbers[name].pods, numbers[name].containers }
	p.changes.Follow(s.staged.Sources, time.Now(), concerned, func() { gone = s.commit(old.backends) })
	for _, b := range s.backends {
		p.start(b)
	}
	return gone
}

// endBackends ends backends that the proxy no longer has when the last call that may use them has ended. Such a call began
// in this group or an earlier one. p.reloading is held.
func (p *Proxy) endBackends(gone []*stack) {
	if len(gone) == 0 {
		return
	}
	before := p.callGroups.next()
	if long := p.describe(p.callGroups.long(before.number)); len(long) > 0 {
		klog.InfoS("Runtimes as they were before the reload stay for calls whose clients wait longer", "staysFor", texts(long))
	}
	p.goDo("keeping runtimes that are no longer in the configuration", func() {
		await(p.running, before.ended, p.patience(), func() time.Duration { return left(p.describe(p.callGroups.long(before.number))) })
		for _, b := range gone {
			b.end()
		}
	})
}

// ErrStopped is the error of a proxy that no longer reloads or hands over: another process has taken over, or it ends.
var ErrStopped = errors.New("this process is stopping")

// errNotServing is the error of a proxy before Run.
var errNotServing = errors.New("this process does not serve yet; try again when it does")

// changeable returns an error if the proxy can neither reload nor hand over now. p.reloading is
// held.
func (p *Proxy) changeable() error {
	switch {
	case p.stopped:
		return ErrStopped
	case p.running == nil:
		return errNotServing
	}
	return nil
}
