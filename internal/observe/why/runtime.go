package why

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

var runtimeChanged = Rule{
	Name:     "runtime",
	Symptoms: []string{"container runtime is*down", "container runtime not ready", "container runtime sanity check failed", "container runtime status is nil", "connect remote runtime service failed", "connect remote runtime failed", "connect remote image service failed", "validate cri v1", "version from runtime service failed", "get runtime version failed", "\"status from runtime service failed", "error while dialing", "connection refused*containerd.sock", "transport is closing", "runtimenotready"},
	Means:    "a runtime was gone (its process ended or hung), slow, or is another one than before. A single shim that does not answer makes it slow for statistics, for which it asks each shim.",
	Shown:    "the changes of the runtime's condition, address, version and process that criproxy noticed, and what happened to kubelet's calls meanwhile",
	Not:      "criproxy or its clients: they ran, and asked",
	Cure:     "read the runtime's log at that time (journalctl -u containerd, or crio)" + sinceNobody,
	find: func(v *view) []Finding {
		return slices.Concat(v.outages(), v.unreached(), v.fromCache(), v.hangs(), v.others(), v.moves())
	},
}

// readLog says whose log to read. A runtime of CRI has a unit that is known; the server of another API has a name and an
// address.
func (v *view) readLog(name string) string {
	of := "read the log of " + name
	if at := v.addresses[name]; at != "" {
		of += ", which is at " + at + ","
	}
	of += " at that time"
	if v.cri {
		of += " (journalctl -u containerd, or crio)"
	}
	return of
}

// sinceNobody says what to look for in the log of a runtime that was gone.
const sinceNobody = ". If nobody restarted it, look for the OOM killer (dmesg), a panic, or a disk that hangs"

// leastUnreached is how many calls must not reach a runtime before why reports it.
const leastUnreached = 3

// unreached finds runtimes that calls of kubelet did not reach, or those of any client if none is kubelet, in recordings that
// lack their conditions.
func (v *view) unreached() []Finding {
	whose, counts := v.whose()
	failed := filter(v.calls, func(c *call) bool { return counts(c) && c.failed() && c.code == codes.Unavailable })
	var found []Finding
	for _, all := range groups(failed, func(c *call) string { return backend.NotReachedIn(c.message) }) {
		name := backend.NotReachedIn(all[0].message)
		if len(all) < leastUnreached || slices.ContainsFunc(v.changes, func(c *capture.Change) bool { return c.Backend == name && c.IsCondition() }) {
			continue
		}
		f, last := shown(all), all[len(all)-1]
		f.About, f.Level, f.Pods, f.Backends, f.Show = name, Error, nil, []string{name}, "-status Unavailable"
		f.Cure = v.readLog(name) + sinceNobody
		f.Text = fmt.Sprintf("%s was not reached by %s of %s from %s on; the last answer was: %s", name, capture.Count(len(all), "call"), whose, clock(f.Since), last.message)
		if c := v.next(last, name, (*call).ok); c != nil {
			f.end("; it answers again since "+clock(c.began), c)
		}
		found = append(found, f)
	}
	return found
}

// fromCache finds runtimes for which a cache answered, in recordings that lack their conditions.
func (v *view) fromCache() []Finding {
	if !v.conditions.Lacking() {
		return nil
	}
	byBackend := map[string][]*call{}
	for _, c := range v.calls {
		for _, name := range c.cached {
			if !v.conditions.Known(name, c.end()) {
				byBackend[name] = append(byBackend[name], c)
			}
		}
	}
	var found []Finding
	for _, name := range slices.Sorted(maps.Keys(byBackend)) {
		all := byBackend[name]
		f, last := shown(all), all[len(all)-1]
		f.About, f.Pods, f.Backends, f.Show = name, nil, []string{name}, "-memory -backend "+name
		f.Cure = v.readLog(name) + sinceNobody
		f.Text = fmt.Sprintf("%s was slow or gone: the cache answered for it in %s, from %s until %s", name, capture.Count(len(all), "call"), clock(f.Since), clock(f.Last))
		f.Over = v.next(last, name, (*call).ok) != nil
		found = append(found, f)
	}
	return found
}

// note returns a finding about a runtime that is another one since a time.
func note(name string, since time.Time, text, cure string, evidence ...Proof) Finding {
	return Finding{Level: Note, About: name, Text: text, Cure: cure, Since: since, Last: since, Over: true, Backends: []string{name}, Count: 1, Evidence: evidence,
		Show: "-own -method Version -backend " + name + " -full"}
}

// ifNobody says what to do about a runtime that is another one than before.
var ifNobody = map[string]string{
	capture.Replaced:  "if nobody has upgraded or replaced it, find out who did",
	capture.Restarted: "if nobody has restarted it, find out why it ended: read the end of its log before this time, and look for the OOM killer (dmesg)",
}

// others finds runtimes of which criproxy found that they were restarted, or are another version.
func (v *view) others() []Finding {
	var found []Finding
	for _, c := range v.changes {
		if cure := ifNobody[c.What]; cure != "" {
			found = append(found, note(c.Backend, c.Time, c.String()+"; criproxy found that at "+clock(c.Time), cure, Proof{c.Time, c.String()}))
		}
	}
	return found
}

// settled is how long kubelet may take to make its pods anew on another runtime.
const settled = time.Minute

// configured says when a runtime got another address.
var configured = map[string]string{
	capture.Reloaded: "criproxy's configuration changed", capture.Serving: "criproxy started with this configuration", capture.HandedOver: "criproxy took over with this configuration",
}

// moves finds runtimes that have got another address.
func (v *view) moves() []Finding {
	var found []Finding
	for _, c := range v.changes {
		how := configured[c.What]
		if how == "" {
			continue // another reason may quote anything
		}
		for part := range strings.SplitSeq(c.Why, "; ") {
			name, _, moved := strings.Cut(part, capture.NowAt)
			if !moved {
				continue
			}
			cure := "if this is another server and nobody meant to replace the one before, put its address back: what clients made there still is there"
			if v.cri {
				cure = "if this is another runtime and nobody meant to replace the one before, put its address back: its pods still run there, and kubelet no longer sees them. Otherwise drain the node first, or end these pods with crictl --runtime-endpoint and the address before"
			}
			happened, _ := v.meanwhile(name, stretch{from: c.Time, to: c.Time.Add(settled)})
			found = append(found, note(name, c.Time, fmt.Sprintf("%s; %s at %s%s", part, how, clock(c.Time), happened), cure, Proof{c.Time, c.String()}))
		}
	}
	return found
}
