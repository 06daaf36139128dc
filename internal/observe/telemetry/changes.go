package telemetry

import (
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/criproxy/criproxy/internal/observe/capture"
)

// Changes is the history of the process: what happened to the proxy, its backends and its plugins. It keeps that in the recording,
// in memory, and in two files of a folder, which outlive the process and the recording. It has the conditions to which all of
// that has led, and nothing else has them: status, metrics, health, the page and events ask here. It is safe for concurrent use.
//
// The proxy owns it, from New to the end of the process. These hold at every moment:
//
//   - A condition is what its changes come to, in the order in which they were noted, whatever the clock said.
//   - A change has a number, which it keeps: dropped changes are numbered, too. Those before written are in the files, if there
//     are files.
//   - Only one process notes conditions, and only one writes the files.
//
// A handover goes through these phases:
//
//	         notes conditions          writes the files
//	before   this process              this process
//	Hold     nobody: they wait         nobody
//	PassOn   the next process          the next process, and this one what it had not written
//	GoOn     this process, as before   this process
//
// Locks: noting is taken first, and held while a backend or plugin is asked for what it has become and while that is logged; then
// mu, which is never held while something waits. Whoever writes or reads the files holds disk, and takes mu after it, for a moment:
// so a disk that hangs delays no change.
type Changes struct {
	rec *Recording
	dir string // of the files; empty if there are none

	noting  sync.RWMutex // read-locked while a condition is noted and logged
	silent  bool         // guarded by noting: another process notes conditions, or is about to
	waits   sync.Mutex   // guards waiting while noting is read-locked
	waiting []func()     // what [Changes.GoOn] will do

	disk   sync.Mutex // held while changes are written, and while the files are read
	file   appended   // guarded by disk
	held   bool       // guarded by disk: another process may be about to write
	unsure uint64     // guarded by disk: of so many changes, the oldest first, more than written may be in a file; zero: none is

	mu         sync.Mutex // guards the fields below
	conditions Conditions
	latest     []capture.Change // of this process and of those that handed over to it, the oldest first
	dropped    uint64           // how many older ones are no longer in latest
	written    uint64           // how many of all, the oldest first, need not be written; only who holds disk changes it
	handed     uint64           // how many changes [Changes.Latest] had returned, and those before them
	passedOn   bool             // another process notes what happens
	news       chan struct{}    // closed when a change comes, or may be written
}

const (
	latestChanges = 1000 // that are in memory
	changesRetry  = 5 * time.Second
	maxWhy        = 1024 // bytes of a reason
	maxWaiting    = 1000 // conditions that wait for [Changes.GoOn]
)

// NewChanges returns the changes of a proxy. They are kept in files of the folder dir, unless dir is empty.
func NewChanges(rec *Recording, dir string) *Changes {
	return &Changes{rec: rec, dir: dir, news: make(chan struct{})}
}

// Add adds a change of the proxy itself. It does not wait for the disk. After [Changes.PassOn] it does nothing.
func (c *Changes) Add(change capture.Change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.add(change)
}

// Do calls f, which notes and logs what a backend or plugin has become. Between [Changes.Hold] and [Changes.GoOn], f waits: Do
// returns, and GoOn calls f. After [Changes.PassOn] f is never called. Of very many that wait, the oldest are dropped.
func (c *Changes) Do(f func()) {
	c.noting.RLock()
	defer c.noting.RUnlock()
	if !c.silent {
		f()
		return
	}
	c.waits.Lock()
	defer c.waits.Unlock()
	c.waiting = append(c.waiting[max(0, len(c.waiting)+1-maxWaiting):], f)
}

// Became notes that a backend or plugin is to.What since to.Time, because of to.Why. It returns the change, with what was
// before. If it was so already, it goes on, perhaps for another reason: nothing has changed, and Became returns since when and
// why it is so.
func (c *Changes) Became(to capture.Change) (change capture.Change, changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.became(to)
}

// became is [Changes.Became]. c.mu is held.
func (c *Changes) became(to capture.Change) (change capture.Change, changed bool) {
	to.Why = brief(to.Why)
	c.conditions.edit(&to, func(k *Condition) { changed = k.next(&to) })
	if changed {
		c.add(to)
	}
	return to, changed
}

// Follow notes that a configuration is in use since now. sources has, by the names of its backends, the names that their
// runtimes had before, empty for a new one. The condition of a runtime that has another name now goes on under that name. The
// outages that are over stay with the name under which they were noted. concerned returns how many pods and containers the
// runtime with an earlier name has. Between the conditions that [Changes.Do] notes by the names of before and those that it notes
// by the new ones, Follow calls use, which brings the configuration into use. Nil means that it is.
func (c *Changes) Follow(sources map[string]string, now time.Time, concerned func(name string) (pods, containers *int), use func()) {
	c.noting.Lock()
	defer c.noting.Unlock()
	if use != nil {
		use()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	became := func(to capture.Change, counted string) {
		to.Pods, to.Containers = concerned(counted)
		c.became(to)
	}
	renamed := map[string]string{} // :: name → new name
	for name, source := range sources {
		renamed[source] = name
	}
	before := maps.Clone(c.conditions.Backends)
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if sources[name] == name {
			continue
		}
		gone := capture.Change{Time: now, What: capture.Removed, Backend: name}
		if to := renamed[name]; to != "" {
			gone.Why = "it is called " + to + " now"
		}
		became(gone, name)
	}
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		source := sources[name]
		was, to := before[source], capture.Change{Backend: name}
		goesOn := source != name && source != ""
		c.conditions.edit(&to, func(k *Condition) {
			if goesOn {
				k.Runtime, k.At, k.Process, k.API, k.Since = was.Runtime, was.At, was.Process, was.API, was.Since
			}
			if k.State == "" && k.Since.IsZero() {
				k.Since = now // connecting
			}
		})
		if goesOn && was.State != "" {
			to.Time, to.What, to.Why = was.Since, was.State, was.Why
			became(to, source)
		}
	}
}

// Of returns the condition of a backend.
func (c *Changes) Of(backend string) Condition {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.conditions.Backends[backend]
}

// Conditions returns all conditions.
func (c *Changes) Conditions() Conditions {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Conditions{maps.Clone(c.conditions.Backends), maps.Clone(c.conditions.Plugins), c.conditions.At}
}

// Is notes the runtime and the API that a process at an address has reported for a backend, as far as they are known. It adds a
// change if another version or process was there before. The address is empty if several servers are there, process zero if it
// is not known.
func (c *Changes) Is(backend, runtime string, api []string, at, process string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var change capture.Change
	changed := false
	c.conditions.edit(&capture.Change{Backend: backend}, func(k *Condition) {
		if len(api) > 0 {
			k.API = api
		}
		change, changed = k.is(runtime, at, process)
	})
	if changed {
		change.Backend = backend
		c.add(change)
	}
}

// brief returns a reason as a file has it: valid UTF-8, and cut off if it is long.
func brief(why string) string {
	if len(why) > maxWhy {
		why = strings.ToValidUTF8(why[:maxWhy], "") + "..."
	}
	return strings.ToValidUTF8(why, "\uFFFD")
}

// add is [Changes.Add]. c.mu is held.
func (c *Changes) add(change capture.Change) {
	if c.passedOn {
		return
	}
	change.Why = brief(change.Why)
	c.conditions.take(&change)
	change.PID = os.Getpid()
	change.Time, change.Since = change.Time.Round(0), change.Since.Round(0) // without the monotonic clock, as in files
	if c.rec.rec != nil {
		c.rec.rec.Change(change)
	}
	c.put(change)
	c.announce()
}

// announce wakes Keep, and those that follow. It closes a channel and makes the next one, so that any number of them notice. c.mu is
// held.
func (c *Changes) announce() {
	close(c.news)
	c.news = make(chan struct{})
}

// next returns the number of the next change that comes. c.mu is held.
func (c *Changes) next() uint64 { return c.dropped + uint64(len(c.latest)) }

// unwritten returns the changes that are to be written. c.mu is held.
func (c *Changes) unwritten() []capture.Change {
	return c.latest[max(c.written, c.dropped)-c.dropped:]
}

// put appends to latest, and drops the oldest. Changes that cannot be written stay longer. c.mu is held.
func (c *Changes) put(change capture.Change) {
	c.latest = append(c.latest, change)
	keep := latestChanges
	if c.dir != "" {
		keep = max(keep, min(len(c.unwritten()), fileChanges))
	}
	if over := len(c.latest) - keep; over > 0 {
		c.latest = slices.Delete(c.latest, 0, over)
		c.dropped += uint64(over)
	}
}

// Hold writes what waits, and nothing more: another process is about to take over, with the conditions that this one has
// now. When Hold returns, they change no more: there is one story at every moment, without a part that two processes note, or
// none. Either [Changes.PassOn] or [Changes.GoOn] follows.
func (c *Changes) Hold() {
	c.noting.Lock()
	c.silent = true
	c.noting.Unlock()
	_ = c.write() // if it fails, the other process writes
	c.disk.Lock()
	defer c.disk.Unlock()
	c.held, c.unsure = true, math.MaxUint64
}

// GoOn ends [Changes.Hold], because the other process did not take over. It notes what has happened meanwhile.
func (c *Changes) GoOn() {
	c.disk.Lock()
	c.mu.Lock()
	c.held, c.unsure = false, c.next()
	c.mu.Unlock()
	c.disk.Unlock()
	c.noting.Lock()
	defer c.noting.Unlock()
	for _, f := range c.waiting {
		f()
	}
	c.silent, c.waiting = false, nil
}

// PassOn says that another process notes from now on what happens, and writes what this one has not written. This one writes
// only what happened since [Changes.Latest].
func (c *Changes) PassOn() {
	c.disk.Lock()
	defer c.disk.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.written = max(c.written, c.handed)
	c.held, c.passedOn = false, true
	c.announce()
}

// Latest returns the latest changes, the oldest first, for another process.
func (c *Changes) Latest() []capture.Change {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handed = c.next()
	return slices.Clone(c.latest)
}

// Restore adds the changes of the process that hands over. Those that the files lack are written: that process may have
// had another folder or none, or a full disk. It must be called before Add.
func (c *Changes) Restore(all []capture.Change) {
	c.disk.Lock()
	defer c.disk.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range all {
		c.put(one)
	}
	c.unsure = c.next()
}

// RestoreConditions goes on with the conditions of the process that hands over. They are exact: that process notes no more.
// [Changes.Replay] is for a process that begins without a handover.
func (c *Changes) RestoreConditions(handed Conditions) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conditions = handed
	c.conditions.goOn(true)
}
