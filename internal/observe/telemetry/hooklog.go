package telemetry

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"
	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/plugins"
)

// changedBy is the key of metadata that recordings add to a runtime's leg: the plugins that changed
// the request, and their changes. The runtime does not get this metadata.
const changedBy = "criproxy-changed-by"

// withPlugins returns the metadata of a leg with the plugins that changed the call of ctx.
func withPlugins(ctx context.Context, md metadata.MD) metadata.MD {
	asked := plugins.ChangedBy(ctx)
	if len(asked) == 0 {
		return md
	}
	md = md.Copy()
	for _, e := range asked {
		for _, c := range e.Changes {
			md.Append(changedBy, e.Plugin+" "+c.String())
		}
	}
	return md
}

// hookLog logs what happens between criproxy and the plugins. It knows of each plugin only whether it was in trouble when it was logged
// last: what its condition is, changes knows. Plugins call it from any goroutine; mu is never held while something is logged.
type hookLog struct {
	changes *Changes

	mu      sync.Mutex
	failing map[string]bool // :: plugin → its latest call failed
	known   map[string]bool // :: plugin → its condition is in the log
	logged  map[string]bool // messages that are logged only once
}

// NewHookLog returns a log of what happens between criproxy and the plugins. Their conditions go to changes.
func NewHookLog(changes *Changes) *hookLog {
	return &hookLog{changes: changes, failing: map[string]bool{}, known: map[string]bool{}, logged: map[string]bool{}}
}

// conditions notes the conditions of all plugins that have a file, since now unless they were so before, and logs them.
func (l *hookLog) conditions(all plugins.States, now time.Time) {
	known := l.changes.Conditions().Plugins
	for _, name := range slices.Sorted(maps.Keys(known)) {
		there := slices.ContainsFunc(all, func(one plugins.PluginState) bool { return one.Name == name })
		if !there && known[name].State != "" {
			all = append(all, plugins.PluginState{Name: name, State: plugins.StateRemoved, Error: "its file is gone"})
		}
	}
	for _, one := range all {
		to := capture.Change{Time: now, What: capture.PluginDown, Plugin: one.Name, Why: one.Error}
		switch one.State {
		case plugins.StateConnecting:
			continue // nobody knows yet
		case plugins.StateReady:
			to.What, to.Why = capture.PluginReady, "" // a mistake in its file has no effect
		case plugins.StateRemoved:
			to.What = capture.Removed
		}
		c, changed := l.changes.Became(to)
		l.condition(one.State, c, changed)
	}
}

// condition logs the condition of a plugin, which is in a state, since c.Time. changed says that it is a change; otherwise
// only the first is logged, of a plugin that was down for an earlier process.
func (l *hookLog) condition(state string, c capture.Change, changed bool) {
	l.mu.Lock()
	known := l.known[c.Plugin]
	l.known[c.Plugin] = true
	if changed && state == plugins.StateReady {
		delete(l.failing, c.Plugin) // it answers again: this says so
	}
	l.mu.Unlock()
	line := []any{"plugin", c.Plugin}
	if changed && !c.Since.IsZero() {
		line = append(line, "after", capture.Lasting(c.Since, c.Time))
	}
	switch {
	case changed && state == plugins.StateReady:
		klog.InfoS("Plugin is ready", line...)
	case changed && state == plugins.StateDown:
		klog.ErrorS(errors.New(c.Why), "Plugin is down", line...)
	case state == plugins.StateDown && !known:
		klog.ErrorS(errors.New(c.Why), "Plugin is still down, as before this process", "plugin", c.Plugin, "since", c.Time.Local().Format(time.DateTime))
	}
}

// Watch logs an event.
func (l *hookLog) Watch(_ context.Context, e plugins.Event) {
	switch e := e.(type) {
	case plugins.States:
		now := time.Now()
		l.changes.Do(func() { l.conditions(e, now) })
	case plugins.Loaded:
		klog.InfoS("Plugin will be asked", "plugin", e.Plugin, "socket", e.File.Endpoint, "points", e.File.Hooks, "fail", e.File.Fail, "timeout", e.File.Timeout, "again", e.Replaced)
		for _, w := range e.Warnings {
			klog.InfoS("Plugin's file may mean something else", "plugin", e.Plugin, "warning", w)
		}
	case plugins.Removed:
		klog.InfoS("Plugin will not be asked any more: its file is gone", "plugin", e.Plugin)
	case plugins.Broken:
		klog.ErrorS(e.Err, "Plugin's file cannot be used", "plugin", e.Plugin, "stays as it was", e.Kept)
	case plugins.Trouble:
		klog.ErrorS(e.Err, "Hooks: "+e.What)
	case plugins.Asked:
		l.asked(e)
	case plugins.Conflict:
		if key := e.Point + e.Field + e.First + e.Second; l.first(key) || klog.V(3).Enabled() {
			klog.ErrorS(nil, "Two plugins changed one field; the second one's value holds", "point", e.Point, "field", e.Field, "first", e.First, "second", e.Second)
		}
	case plugins.Unknown:
		if e.Refused {
			klog.ErrorS(e.Err, "Call refused: a plugin must be asked, but criproxy cannot find the pod or container of the call", "method", e.Method, "id", e.ID)
		} else {
			klog.V(2).InfoS("Plugins were not asked: criproxy cannot find the pod or container of the call", "method", e.Method, "id", e.ID, "error", e.Err)
		}
	case plugins.Learned:
		klog.V(2).InfoS("Plugins can be asked about pods and containers from before", "objects", e.Objects, "took", e.Took, "error", e.Err)
	}
}

// asked logs the answer of a plugin: a change at level 3, the first failure after a success at
// any level.
func (l *hookLog) asked(e plugins.Asked) {
	l.mu.Lock()
	was := l.failing[e.Plugin]
	l.failing[e.Plugin] = e.Err != nil
	l.mu.Unlock()
	switch {
	case e.Err != nil && (!was || e.Refused || klog.V(2).Enabled()):
		klog.ErrorS(e.Err, "Plugin failed", "plugin", e.Plugin, "point", e.Point, "id", e.ID, "took", e.Took, "call refused", e.Refused, "spared", e.Exempt)
	case e.Err == nil && was:
		klog.InfoS("Plugin answers again", "plugin", e.Plugin, "point", e.Point)
	}
	if len(e.Changes) > 0 && klog.V(3).Enabled() {
		changes := make([]string, len(e.Changes))
		for i, c := range e.Changes {
			changes[i] = c.String()
		}
		klog.V(3).InfoS("Plugin changed a call", "plugin", e.Plugin, "point", e.Point, "id", e.ID, "took", e.Took, "changes", strings.Join(changes, "; "))
	}
	if len(e.LeftOut) > 0 && l.first(e.Plugin+strings.Join(e.LeftOut, ",")) {
		klog.InfoS("Plugin did not get fields that are not valid UTF-8; the runtime gets them unchanged", "plugin", e.Plugin, "point", e.Point, "fields", e.LeftOut)
	}
}

// first reports whether key is new. It forgets all keys when there are many.
func (l *hookLog) first(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.logged[key] {
		return false
	}
	if len(l.logged) > 1000 {
		clear(l.logged)
	}
	l.logged[key] = true
	return true
}
