package telemetry

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// maxOutages is how many outages of a backend its condition holds.
const maxOutages = 20

// A Condition is what the changes of a backend or plugin come to. Status, metrics, health, the page and recordings show it.
// It belongs to the name of the backend or plugin: it outlives connections, and a handover passes it on. Its JSON is in
// files. Its states, which capture names:
//
//	State                 of a backend                               of a plugin
//	empty                 connecting: it has not been asked yet      it has not been asked yet
//	up, plugin-ready      it answers                                 it is asked
//	slow                  it answers late                            -
//	gone, plugin-down     it cannot be reached, or answers nothing   it cannot be asked
//
// "removed" is a change, but no state: afterwards the state is empty. Each state but the empty and the good one is an outage, until
// the next change. What changes the state of a backend is at backend.Condition.
type Condition struct {
	Runtime string         `json:"runtime,omitempty"`
	At      string         `json:"at,omitempty"`      // the address at which the runtime said what it is
	Process string         `json:"process,omitempty"` // that served this address then, as host.Process.Identity has it; empty if that is not known
	API     []string       `json:"api,omitempty"`
	Outages []admin.Outage `json:"outages,omitempty"`   // the latest first; never changed in place
	State   string         `json:"condition,omitempty"` // empty: not asked yet
	Since   time.Time      `json:"since,omitzero"`      // zero: since the process began
	Why     string         `json:"why,omitempty"`       // why it became slow or gone, as the event and the outage say
	Now     string         `json:"now,omitempty"`       // why it still is, if that is other trouble
}

// Reason returns why a backend is slow or gone: why it became so and, if it is so for another reason now, that.
func (k *Condition) Reason() string {
	if k.Now == "" {
		return k.Why
	}
	return k.Why + "; now: " + k.Now
}

// next completes a change to what is so now with what was before, and reports whether it is one. If it is none, the condition
// goes on, perhaps for another reason; the change then says since when and why. Only take changes the state: next only notes
// the reason of now.
func (k *Condition) next(to *capture.Change) bool {
	switch {
	case to.What == k.State:
		if !isUp(k.State) && to.Why != "" {
			k.Now = to.Why
			if backend.SameTrouble(k.Why, to.Why) {
				k.Now = ""
			}
		}
	case to.What == capture.Removed && k.State == "":
		k.Since = time.Time{} // it may come back
	default:
		if to.Was = k.State; to.Was != "" { // connecting is no condition
			to.Since = k.Since
			if to.Time.Before(k.Since) {
				to.Time = k.Since // the clock was set back, or the reports came in another order
			}
		}
		return true
	}
	to.Time, to.Why = k.Since, k.Reason()
	return false
}

// take takes in a change. If those before it are lost, it says itself what was before. The order of changes counts, not the
// clock, which may have been set back.
func (k *Condition) take(c *capture.Change) {
	if c.Was != "" && c.Was != k.State {
		k.take(&capture.Change{What: c.Was, Time: c.Since})
	}
	k.Outages = slices.Clone(k.Outages)
	if len(k.Outages) > 0 && k.Outages[0].To.IsZero() {
		k.Outages[0].To = c.Time
	}
	k.State, k.Since, k.Why, k.Now = c.What, c.Time, "", ""
	switch {
	case c.What == capture.Removed:
		k.State, k.Since = "", time.Time{} // it may come back
	case !isUp(c.What):
		k.Why = c.Why
		if len(k.Outages) > 0 && k.Outages[0].State == c.What && k.Outages[0].From.Equal(c.Time) {
			k.Outages = k.Outages[1:] // it goes on: the backend has had another name meanwhile
		}
		k.Outages = slices.Insert(k.Outages, 0, admin.Outage{State: c.What, From: c.Time, Error: c.Why, Pods: c.Pods, Containers: c.Containers})
		k.Outages = k.Outages[:min(len(k.Outages), maxOutages)]
	}
}

// is notes the runtime that a process at an address has said it is, and returns the change if another one was there before.
// Of a runtime at another address the configuration says so. An empty address is one of several servers.
func (k *Condition) is(runtime, at, process string) (change capture.Change, changed bool) {
	if runtime == "" {
		return change, false
	}
	was := *k
	k.Runtime, k.At, k.Process = runtime, at, process
	change.Time = time.Now()
	switch {
	case at == "" || was.At != at:
		return change, false
	case was.Runtime != runtime:
		change.What, change.Why = capture.Replaced, fmt.Sprintf("it is %s now, before it was %s", runtime, was.Runtime)
	case was.Process != "" && process != "" && was.Process != process:
		now, _, _ := strings.Cut(process, " ")
		before, _, _ := strings.Cut(was.Process, " ")
		change.What, change.Why = capture.Restarted, fmt.Sprintf("process %s serves it now, process %s did before (%s)", now, before, runtime)
	default:
		return change, false
	}
	return change, true
}

// isUp reports whether a condition is that of a backend or plugin that answers. All others but the empty one are outages, so a
// condition that a newer criproxy has noted, and this one does not know, is one: it is safer to show trouble that is over.
func isUp(condition string) bool { return condition == capture.Up || condition == capture.PluginReady }

// Conditions are the conditions of all backends and plugins. The zero value has none. [Changes] guards its own; copies of it share
// At and the outages, which are therefore never changed in place.
type Conditions struct {
	Backends map[string]Condition `json:"backends,omitempty"` // :: name
	Plugins  map[string]Condition `json:"plugins,omitempty"`  // :: name of the file
	At       map[string]string    `json:"at,omitempty"`       // :: name of a backend → where it is; never changed in place
}

// edit has f change the condition that a change is about. A change of the proxy itself is about none. The map is changed in place, so
// whoever gives it out clones it.
func (s *Conditions) edit(of *capture.Change, f func(*Condition)) {
	all, name := &s.Backends, of.Backend
	if of.Plugin != "" {
		all, name = &s.Plugins, of.Plugin
	}
	if name == "" {
		return
	}
	k := (*all)[name]
	f(&k)
	if *all == nil {
		*all = map[string]Condition{}
	}
	(*all)[name] = k
}

// take takes in a change.
func (s *Conditions) take(c *capture.Change) {
	if c.Addresses != nil {
		s.At = c.Addresses
	}
	if c.Plugin != "" || c.IsCondition() {
		s.edit(c, func(k *Condition) { k.take(c) })
	}
}

// newest returns the conditions to which replayed changes have led, and those of the evidence that an earlier process has
// written, for what is not in the changes. The evidence is never newer. Where both have the same state since the same time, the
// evidence counts, because it also has what no change says: the runtime, its API, and the reason of now.
func newest(replayed, evidence map[string]Condition) map[string]Condition {
	all := map[string]Condition{}
	maps.Copy(all, evidence)
	for name, k := range replayed {
		if was := evidence[name]; k.State != was.State || !k.Since.Equal(was.Since) {
			k.Runtime, k.At, k.Process, k.API = was.Runtime, was.At, was.Process, was.API
			all[name] = k
		}
	}
	return all
}

// goOn begins with the conditions of another process. A condition goes on: that of a process that handed over
// as it is, that of one that has ended only if the backend was not up then, because nobody has looked since. A time to come is
// one before the clock was set back.
func (s *Conditions) goOn(handed bool) {
	for _, all := range []map[string]Condition{s.Backends, s.Plugins} {
		for name, k := range all {
			if (isUp(k.State) || k.State == "") && !handed {
				k.State, k.Since = "", time.Time{}
			}
			if now := time.Now(); k.Since.After(now) {
				k.Since = now
			}
			all[name] = k
		}
	}
}
