package model

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

const (
	// slack is how long criproxy's own work may take: its rounds, and the pauses between them.
	slack = time.Second

	// redial is the longest pause before criproxy connects again to a runtime that was down.
	redial = 4 * time.Second

	// settled is how long a weather must last before criproxy must show its effects.
	settled = 20 * time.Second
)

// front returns the front name of an item of the i-th backend.
func (c *config) front(i int, id string) string {
	if i == 0 || c.native {
		return id
	}
	return c.backends[i].name + "__" + id
}

// place is what clients' names say of a backend: its name, and whether it is the primary.
type place struct {
	name    string
	primary bool
}

func (c *config) place(i int) place { return place{c.backends[i].name, i == 0} }

// locate returns the backend and the item that a front name belongs to.
func (c *config) locate(front string) (i int, id string) {
	for i, b := range c.backends {
		if c.native && strings.HasPrefix(front, strings.ToLower(b.runtime.name)) {
			return i, front
		}
	}
	for i := 1; i < len(c.backends); i++ {
		if id, ok := strings.CutPrefix(front, c.backends[i].name+"__"); ok {
			return i, id
		}
	}
	return 0, front
}

// item returns an item, whether it still exists or not.
func (r *runtime) item(k kind, id string) *item {
	for _, i := range r.items[k] {
		if i.id == id {
			return i
		}
	}
	return nil
}

// judgeList reports what is wrong with the answer to a list. mu is held.
func (w *world) judgeList(c *call, k kind, f filter, got map[string]shown) {
	w.judgeTime(c, k, f)
	if c.err != nil || w.wrong != "" {
		return
	}
	for front := range got {
		i, id := c.cfg.locate(front)
		if c.cfg.backends[i].runtime.item(k, id) == nil {
			w.violated("call %d: %s shows %s, which has never been", c.number, c.method, front)
			return
		}
	}
	for i := range c.cfg.backends {
		w.judgePart(c, k, f, i, got)
	}
}

// judgePart judges what a list shows of one backend.
func (w *world) judgePart(c *call, k kind, f filter, at int, got map[string]shown) {
	b := &c.cfg.backends[at]
	r := b.runtime
	wrong := func(i *item, format string, args ...any) {
		w.trace("process %d: backend %s is %+v", c.proxy.number, b.key(), c.proxy.condition(b))
		w.violated("call %d, %s of process %d, begun at %.3f: %s "+format,
			append([]any{c.number, c.method + "(" + f.String() + ")", c.proxy.number, c.began.Sub(w.began).Seconds(), c.cfg.front(at, i.id)}, args...)...)
	}
	since := b.knows.since
	if bound, ok := b.age(c, k); ok && c.began.Add(-bound).After(since) {
		since = c.began.Add(-bound)
	}
	leftOut := at > 0 && b.hasNothing(c)
	for _, i := range r.items[k] {
		front := c.cfg.front(at, i.id)
		now, shows := got[front]
		shown := c.latest(b.knows.shown[k][i.id])
		if !shows {
			there := i.created.Before(c.began) && (i.removed.IsZero() || i.removed.After(c.ended))
			if !there || !f.surelyMatches(c.cfg, i, max(shown, 0)) || leftOut {
				continue
			}
			switch {
			case shown >= 0:
				wrong(i, "is missing: it is there, and was shown before (version %d)", shown)
			case !i.ours.IsZero() && i.ours.Before(c.began) && c.knowsOf(i):
				wrong(i, "is missing: it is there, and its making was answered at %.3f", i.ours.Sub(w.began).Seconds())
			case i.created.Before(since):
				wrong(i, "is missing: it is there since %.3f, and the list may be as of %.3f", i.created.Sub(w.began).Seconds(), since.Sub(w.began).Seconds())
			}
			continue
		}
		version := i.shownAs(now, c)
		switch {
		case !i.removed.IsZero() && i.removed.Before(b.knows.blank):
			wrong(i, "is shown, was removed at %.3f, and nothing was remembered at %.3f", i.removed.Sub(w.began).Seconds(), b.knows.blank.Sub(w.began).Seconds())
		case version < 0:
			wrong(i, "is shown as version %d, state %d, which it has not been", now.version, now.state)
		case version < shown:
			wrong(i, "is shown as version %d, and was shown before as version %d", version, shown)
		case version < c.made(b, i):
			wrong(i, "is shown as version %d, and a call that was answered has made it version %d", version, c.made(b, i))
		case !i.gone.IsZero() && i.gone.Before(c.began) && c.knowsOf(i):
			wrong(i, "is shown, and its removal was answered at %.3f", i.gone.Sub(w.began).Seconds())
		case !i.removed.IsZero() && i.removed.Before(since) && since.After(b.knows.since):
			wrong(i, "is shown, and was removed at %.3f; the list may be as of %.3f", i.removed.Sub(w.began).Seconds(), since.Sub(w.began).Seconds())
		case now.version+1 < len(i.versions) && i.versions[now.version+1].at.Before(since) && since.After(b.knows.since):
			wrong(i, "is shown as version %d, which it was until %.3f; the list may be as of %.3f", now.version, i.versions[now.version+1].at.Sub(w.began).Seconds(), since.Sub(w.began).Seconds())
		case !f.matches(c.cfg, at, i, int32(now.state)):
			wrong(i, "is shown, and does not match")
		case i.wrote != "" && i.writtenTo == c.cfg.place(at) && now.image != i.wrote:
			wrong(i, "is shown with image %q, and was made with %q", now.image, i.wrote)
		}
		if all := b.knows.shown[k][i.id]; w.wrong == "" && !slices.ContainsFunc(all, func(t telling) bool { return t.version >= version && t.written >= now.version && !t.at.After(c.ended) }) {
			b.knows.shown[k][i.id] = append(all, telling{version, c.ended, c.proxy.number, now.version})
		}
	}
}

// latest is the latest version that clients had seen before a call, through the process of the
// call or an earlier one whose cache that process has.
func (c *call) latest(all []telling) int {
	v := -1
	for _, one := range all {
		if !one.at.After(c.began) && c.proxy.heard(one.process, one.at) {
			v = max(v, one.version)
		}
	}
	return v
}

// heard reports whether p knows what clients saw at a time through another process: it does if that
// was before the other process handed over or ended.
func (p *proxy) heard(process int, at time.Time) bool {
	return process == p.number || process < p.number && at.Before(p.world.starts[process]) // the next one began then
}

// knowsOf reports whether a change of an item was made through the process of a call, or before
// that process started.
func (c *call) knowsOf(i *item) bool {
	at := i.ours
	if !i.gone.IsZero() {
		at = i.gone
	}
	return c.proxy.heard(i.by, at) || c.proxy.successor && i.by == c.proxy.number-1
}

func (f filter) matches(cfg *config, at int, i *item, state int32) bool {
	front := cfg.front(at, i.id)
	return strings.HasPrefix(front, f.id) && (f.pod == "" || strings.HasPrefix(cfg.front(at, i.pod), f.pod)) &&
		(f.colour == "" || i.labels["colour"] == f.colour) && (f.state == nil || *f.state == state)
}

// surelyMatches reports whether an item matches in its current version and in all versions since a
// given one.
func (f filter) surelyMatches(cfg *config, i *item, version int) bool {
	for at := range cfg.backends {
		if cfg.backends[at].runtime.item(i.kind, i.id) != i {
			continue
		}
		for _, v := range i.versions[version:] {
			if !f.matches(cfg, at, i, v.state) {
				return false
			}
		}
	}
	return true
}

// backendOf returns the backend that has the items that a filter names.
func (w *world) backendOf(c *call, f filter) *entry {
	i, _ := c.cfg.locate(f.id + f.pod)
	return &c.cfg.backends[i]
}

// latin reports whether a backend had text that is not UTF-8 before the end of a call, which a cache
// may hold.
func (b *entry) latin(c *call) bool {
	return slices.ContainsFunc(b.runtime.phases, func(p phase) bool { return p.weather.latin && p.from.Before(c.ended) })
}

// hasNothing reports whether there was evidence during a call that a backend has nothing: no
// process listened there, and no client has ever seen an item of it.
func (b *entry) hasNothing(c *call) bool {
	for k := range b.knows.shown {
		for _, all := range b.knows.shown[k] {
			if slices.ContainsFunc(all, func(t telling) bool { return !t.at.After(c.began) }) {
				return false
			}
		}
	}
	return slices.ContainsFunc(b.runtime.during(c.began, c.ended), b.away)
}

// away reports whether no process listens at the address of a backend in a phase of its runtime.
func (b *entry) away(p phase) bool { return p.down || p.address != b.address }

// absentThroughout reports whether no process listened there during the whole call.
func (b *entry) absentThroughout(from, to time.Time) bool {
	return !slices.ContainsFunc(b.runtime.during(from, to), func(p phase) bool { return !b.away(p) })
}

// steadySince returns the weather of a backend that has answered everything for a while, and the time
// since which clients could notice it.
func (b *entry) steadySince(c *call) (phase, time.Time, bool) {
	all := b.runtime.during(c.began, c.ended)
	p := all[0]
	since := p.from
	if c.cfg.since.After(since) {
		since = c.cfg.since
	}
	return p, since, len(all) == 1 && p.steady() && p.address == b.address
}

// fast reports whether a backend has answered everything at once during a call and for a while
// before.
func (b *entry) fast(c *call) bool {
	p, since, ok := b.steadySince(c)
	for _, l := range p.latency {
		ok = ok && l.most <= fast
	}
	return ok && c.began.Sub(since) > settled+b.tail(p)
}

// tail returns how long requests from earlier weather delay the requests that a runtime gets now.
func (b *entry) tail(now phase) time.Duration {
	var d time.Duration
	for _, p := range b.runtime.during(now.from.Add(-time.Minute), now.from) {
		if p.from != now.from {
			d = max(d, p.latency[lists].most)
		}
	}
	return d
}

// age returns how old the list of a backend may be that answers, even if slowly.
func (b *entry) age(c *call, k kind) (time.Duration, bool) {
	p, since, ok := b.steadySince(c)
	l := p.latency[lists].most
	if !p.concerns(k) {
		l = fast
	}
	silent := false // whether the backend may count as gone
	for i := range p.latency {
		silent = silent || p.latency[i].most*5/4 > c.cfg.silence
	}
	switch {
	case !ok || silent && p.latency[alive].most > fast || c.began.Sub(since) < 3*l+settled+b.tail(p):
		return 0, false
	case l*3/2 < c.cfg.budget && c.deadline.Sub(c.began) > 2*l:
		return 0, true
	}
	return 2*l + 2*time.Second + slack, true
}

// remembered reports whether a process has a complete list of a backend, which has not changed since,
// as far as a client or the runtime itself knows.
func (b *entry) remembered(c *call, k kind) bool {
	r := b.runtime
	if b.latin(c) { // an item whose text differs counts as changed
		return false
	}
	var first, second *answered
	for i := len(r.history[k]) - 1; i >= 0 && first == nil; i-- {
		switch t := &r.history[k][i]; {
		case t.process != c.proxy.number || t.at.After(c.began) || t.asked.Before(b.knows.since):
		case second == nil:
			second = t
		case t.at.Before(second.asked):
			first = t
		}
	}
	if first == nil {
		return false
	}
	for _, ch := range r.changes[k] {
		if !ch.failed && !ch.known && (ch.to.IsZero() || !ch.to.Before(first.asked)) && !ch.from.After(c.ended) {
			return false
		}
	}
	return true
}

// silence returns how long a backend may answer nothing before it counts as gone. A backend that has
// answered late gets more time.
func (b *entry) silence(c *call) time.Duration {
	bound := c.cfg.silence
	for _, p := range b.runtime.phases {
		if l := p.latency[alive].most; l > fast {
			bound = max(bound, 2*l)
		}
	}
	return bound + 5*time.Second
}

// frozenFor returns how long a backend has answered nothing during a call.
func (b *entry) frozenFor(c *call) time.Duration {
	var longest time.Duration
	all := b.runtime.during(c.began, c.ended)
	for n, p := range all {
		if !p.frozen || p.address != b.address {
			continue
		}
		to := c.ended
		if n+1 < len(all) {
			to = all[n+1].from
		}
		longest = max(longest, to.Sub(later(c.began, p.from)))
	}
	return longest
}

// judgeDeadline reports calls that ended with DeadlineExceeded before their deadline, or that waited too
// long for a silent backend. mu is held.
func (w *world) judgeDeadline(c *call, concerned ...*entry) {
	if status.Code(c.err) == codes.DeadlineExceeded && c.ended.Before(c.deadline) {
		for _, b := range concerned {
			for _, p := range b.runtime.during(c.began, c.ended) {
				if p.code == codes.DeadlineExceeded || p.list == codes.DeadlineExceeded || p.status == codes.DeadlineExceeded {
					return
				}
			}
		}
		w.violated("call %d: %s ended with DeadlineExceeded after %s: %v", c.number, c.method, c.took(), c.err)
	}
	for _, b := range concerned {
		another := slices.ContainsFunc(concerned, func(o *entry) bool { return o.frozenFor(c) == 0 && !o.fast(c) }) // criproxy waits for this one
		if d := b.frozenFor(c); d > b.silence(c) && !another {
			w.violated("call %d: %s %s, begun at %.3f, has waited %s for backend %s, which answers nothing: %v", c.number, c.method, c.about, c.began.Sub(w.began).Seconds(), d, b.key(), c.err)
		}
	}
}

// pointers to all backends.
func (c *config) all() []*entry {
	var all []*entry
	for i := range c.backends {
		all = append(all, &c.backends[i])
	}
	return all
}

// judgeTime reports a list that failed or waited unnecessarily. mu is held.
func (w *world) judgeTime(c *call, k kind, f filter) {
	concerned := c.cfg.all()
	for _, name := range []string{f.id, f.pod} {
		if name != "" && !c.cfg.native { // the prefix names the only backend
			i, _ := c.cfg.locate(name)
			concerned = []*entry{&c.cfg.backends[i]}
		}
	}
	w.judgeDeadline(c, concerned...)
	for _, b := range concerned {
		leftOut := b != &c.cfg.backends[0] && !b.runtime.met && b.absentThroughout(c.began.Add(-5*time.Second), c.ended)
		if !leftOut && !b.remembered(c, k) && !b.fast(c) {
			return
		}
	}
	if c.took() > c.cfg.budget+slack {
		w.violated("call %d: %s(%s), begun at %.3f, took %s, and all is remembered: %v", c.number, c.method, f, c.began.Sub(w.began).Seconds(), c.took(), c.err)
	}
	if c.err == nil {
		return
	}
	if !f.none() { // the runtime's error for a filter passes unchanged
		switch status.Code(c.err) {
		case codes.InvalidArgument, codes.NotFound, codes.OutOfRange:
			return
		}
	}
	w.violated("call %d: %s(%s), begun at %.3f, failed, and all is remembered: %v", c.number, c.method, f, c.began.Sub(w.began).Seconds(), c.err)
}

// asked returns the backends that criproxy may ask about an item of b: b, or any if its id is native and clients have not
// seen it.
func (c *call) asked(b *entry, id string) []*entry {
	if c.cfg.native && c.latest(b.knows.shown[sandboxes][id]) < 0 && c.latest(b.knows.shown[containers][id]) < 0 {
		return c.cfg.all()
	}
	return []*entry{b}
}

// judgeStatus judges the answer to a status call. mu is held.
func (w *world) judgeStatus(c *call, k kind, front string, version int, image string) {
	at, id := c.cfg.locate(front)
	b := &c.cfg.backends[at]
	i := b.runtime.item(k, id)
	w.judgeDeadline(c, c.asked(b, id)...)
	wrong := func(format string, args ...any) {
		w.violated("call %d, %s(%s) of process %d, begun at %.3f: "+format, append([]any{c.number, c.method, front, c.proxy.number, c.began.Sub(w.began).Seconds()}, args...)...)
	}
	if i == nil {
		if c.err == nil {
			wrong("is OK, and the item has never been")
		}
		return
	}
	listed, asked := c.latest(b.knows.shown[k][id]), c.latest(b.knows.asked[id])
	current := len(i.versions) - 1
	if c.err != nil {
		there := i.created.Before(c.began) && i.removed.IsZero()
		p := b.runtime.during(c.began, c.ended)
		said := false // whether the runtime has answered so
		for _, one := range p {
			said = said || one.status != 0 && status.Code(c.err) == one.status || one.code != 0 && status.Code(c.err) == one.code
		}
		switch {
		case said, !there:
		case status.Code(c.err) == codes.NotFound && c.cfg.native && (b.hasNothing(c) || listed < 0 && i.ours.IsZero()): // clients cannot know the id
		case status.Code(c.err) == codes.NotFound:
			wrong("is NotFound, and it is there: %v", c.err)
		case b.fast(c):
			wrong("failed, and the runtime is well: %v", c.err)
		case b.statusRemembered(c, i):
			wrong("failed, and its version %d is remembered: %v", current, c.err)
		}
	}
	if b.statusRemembered(c, i) && c.took() > c.cfg.budget+slack {
		wrong("took %s, and its version %d is remembered: %v", c.took(), current, c.err)
	}
	if c.err != nil {
		return
	}
	switch {
	case version < 0 || version > current || i.versions[version].at.After(c.ended):
		wrong("is version %d, which it has not been", version)
	case version < listed:
		wrong("is version %d, and it was listed as version %d", version, listed)
	case version < asked:
		wrong("is version %d, and its status was version %d", version, asked)
	case version < i.least && i.leastAt.Before(c.began) && (c.proxy.heard(i.leastBy, i.leastAt) || c.proxy.successor && i.leastBy == c.proxy.number-1):
		wrong("is version %d, and a call made it version %d at %.3f", version, i.least, i.leastAt.Sub(w.began).Seconds())
	case !i.gone.IsZero() && i.gone.Before(c.began) && c.knowsOf(i):
		wrong("is OK, and its removal was answered at %.3f", i.gone.Sub(w.began).Seconds())
	case i.wrote != "" && i.writtenTo == c.cfg.place(at) && image != i.wrote:
		wrong("has image %q, and was made with %q", image, i.wrote)
	}
	if w.wrong == "" {
		b.knows.asked[id] = append(b.knows.asked[id], telling{version, c.ended, c.proxy.number, version})
	}
}

// statusRemembered reports whether a client got the status of an item from the process of a call
// after the item was listed as it is now, and nothing has changed it since. The status of a pod
// includes its containers.
func (b *entry) statusRemembered(c *call, i *item) bool {
	current := len(i.versions) - 1
	settled, ok := b.settled(c, i)
	if b.latin(c) { // as in remembered
		return false
	}
	if !ok || !i.removed.IsZero() && !i.removed.After(c.ended) {
		return false
	}
	for _, part := range b.runtime.items[containers] {
		if i.kind == sandboxes && part.pod == i.id {
			at, ok := b.settled(c, part)
			if !ok {
				return false
			}
			settled = later(settled, at)
		}
	}
	for _, t := range b.knows.asked[i.id] {
		if t.version == current && t.process == c.proxy.number && !t.at.After(c.began) && t.at.After(settled.Add(time.Minute)) {
			return true
		}
	}
	return false
}

// settled returns since when the process of a call has listed an item in its current version; ok is
// false if it has not.
func (b *entry) settled(c *call, i *item) (since time.Time, ok bool) {
	current := len(i.versions) - 1
	if i.versions[current].at.After(c.began) || i.removed.After(c.began) {
		return since, false
	}
	since = later(i.touched, i.removed)
	if !i.removed.IsZero() {
		return since, true
	}
	for _, t := range b.knows.shown[i.kind][i.id] {
		// Until the runtime lists a new item, criproxy lists it as its request describes it.
		byRuntime := slices.ContainsFunc(b.runtime.history[i.kind], func(a answered) bool {
			return a.process == c.proxy.number && a.asked.After(i.created) && !a.at.After(t.at)
		})
		if t.written == current && t.process == c.proxy.number && !t.at.After(c.began) && byRuntime {
			return later(since, t.at), true
		}
	}
	return since, false
}

// judgeMerged judges calls whose answer is merged from those of all runtimes. mu is held.
func (w *world) judgeMerged(c *call) {
	former := func(p phase) bool { return p.api == v1alpha2 }
	switch {
	case c.method == "ListImages":
		w.judgeDeadline(c, c.cfg.all()...)
		return
	case c.method == "ListMetricDescriptors" && slices.ContainsFunc(c.cfg.backends[0].runtime.during(c.began, c.ended), former):
		return // the primary does not have it
	}
	if b := &c.cfg.backends[0]; b.fast(c) && (c.err != nil || c.took() > c.cfg.budget+slack) {
		w.violated("call %d: %s, begun at %.3f, took %s, and the primary is well: %v", c.number, c.method, c.began.Sub(w.began).Seconds(), c.took(), c.err)
	}
}

// idempotent are the methods that succeed for items that are gone.
var idempotent = map[string]bool{"StopPodSandbox": true, "RemovePodSandbox": true, "StopContainer": true, "RemoveContainer": true}

// judgeChange judges a mutating call. mu is held.
func (w *world) judgeChange(c *call, front string, token any, reply []byte) {
	var at *entry
	if c.method == "RunPodSandbox" {
		for i := range c.cfg.backends {
			if c.cfg.backends[i].runtime.arrivals[token] > 0 {
				at = &c.cfg.backends[i]
			}
		}
	} else {
		i, _ := c.cfg.locate(front)
		at = &c.cfg.backends[i]
	}
	n, done := 0, false
	for _, r := range w.runtimes {
		n += r.arrivals[token]
		done = done || r.done[token]
	}
	if n > 1 {
		w.violated("call %d: %s(%s) was sent %d times", c.number, c.method, front, n)
	}
	if c.err == nil && !done {
		w.violated("call %d: %s(%s) is OK, and no runtime has done it", c.number, c.method, front)
	}
	if at == nil || w.wrong != "" {
		return
	}
	if i, id := c.cfg.locate(front); front != "" && c.cfg.backends[i].runtime.item(sandboxes, id) == nil && c.cfg.backends[i].runtime.item(containers, id) == nil {
		return // its backend is no longer in the configuration
	}
	w.judgeDeadline(c, c.asked(at, front)...)
	if c.cfg.native && at.hasNothing(c) {
		return // the primary answers for items that no runtime can have
	}
	n = at.runtime.arrivals[token]
	for _, p := range at.runtime.during(c.began, c.ended) {
		if n > 0 && (p.down || p.barred || p.address != at.address) && p.from.After(c.began) && c.ended.Sub(p.from) > 100*time.Millisecond {
			w.violated("call %d: %s(%s) ended %s after its runtime went: %v", c.number, c.method, front, c.ended.Sub(p.from), c.err)
		}
		if n > 0 && (p.down || p.barred) && p.from.After(c.began) && status.Code(c.err) != codes.Unavailable {
			w.violated("call %d: %s(%s): its runtime went, and that is not Unavailable: %v", c.number, c.method, front, c.err)
		}
	}
	// criproxy asks the other runtimes for the owner of a native id that has not been listed yet.
	placed := !c.cfg.native || slices.ContainsFunc([]kind{sandboxes, containers}, func(k kind) bool {
		i := at.runtime.item(k, front)
		return i != nil && i.removed.IsZero() && c.latest(at.knows.shown[k][front]) >= 0
	})
	if placed && at.absentThroughout(c.began.Add(-5*time.Second), c.ended) && (c.took() > 100*time.Millisecond || status.Code(c.err) != codes.Unavailable) && c.began.Sub(c.cfg.since) > 5*time.Second {
		w.violated("call %d: %s(%s) on a runtime that is not there took %s: %v", c.number, c.method, front, c.took(), c.err)
	}
	if c.err != nil {
		well := !slices.ContainsFunc(c.cfg.all(), func(b *entry) bool { return !b.fast(c) })
		if well && idempotent[c.method] {
			w.violated("call %d: %s(%s) failed, all runtimes are well, and what is gone is stopped and removed: %v", c.number, c.method, front, c.err)
		}
		return
	}
	_, id := c.cfg.locate(front)
	is := func(i *item, ours *time.Time) {
		if i != nil {
			*ours, i.by = c.ended, c.proxy.number
		}
	}
	// From now on, statuses must show what the client has changed in an item, and lists, too, where a rule says it: a container
	// that was never started may stay as it is when it is stopped.
	least := func(i *item) {
		if i == nil {
			return
		}
		state := exited
		switch {
		case i.kind == sandboxes:
			state = notReady
		case c.method == "StartContainer":
			state = running
		}
		v := slices.IndexFunc(i.versions, func(one version) bool { return !one.at.After(c.ended) && one.state == state })
		if v > i.least {
			i.least, i.leastAt, i.leastBy = v, c.ended, c.proxy.number
		}
		if state != exited || i.versions[0].state != made {
			at.knows.made[i.id] = append(at.knows.made[i.id], telling{v, c.ended, c.proxy.number, v})
		}
	}
	r := at.runtime
	switch c.method {
	case "RunPodSandbox":
		_, id := c.cfg.locate(decode(reply, &runtimeapi.RunPodSandboxResponse{}).PodSandboxId)
		i := r.item(sandboxes, id)
		is(i, &i.ours)
	case "CreateContainer":
		_, id := c.cfg.locate(decode(reply, &runtimeapi.CreateContainerResponse{}).ContainerId)
		i := r.item(containers, id)
		is(i, &i.ours)
	case "StartContainer", "StopContainer":
		least(r.item(containers, id))
	case "StopPodSandbox":
		least(r.item(sandboxes, id))
		for _, i := range r.items[containers] {
			if i.pod == id {
				least(i)
			}
		}
	case "RemoveContainer":
		if i := r.item(containers, id); i != nil {
			is(i, &i.gone)
		}
	case "RemovePodSandbox":
		for _, i := range r.items[containers] {
			if i.pod == id && r.done[token] { // another runtime may answer for a pod that is gone, and its containers are still there
				is(i, &i.gone)
			}
		}
		if i := r.item(sandboxes, id); i != nil {
			is(i, &i.gone)
		}
	}
}

// judgeConditions reports backends in a wrong condition. mu is held.
func (w *world) judgeConditions() {
	if w.now == nil || w.now.abort != nil { // it notes nothing before it knows whether the successor serves
		return
	}
	cfg := w.now.cfg
	c := &call{cfg: cfg, proxy: w.now, began: time.Now(), ended: time.Now(), deadline: time.Now().Add(long)}
	for i := range cfg.backends {
		b := &cfg.backends[i]
		state := w.now.condition(b)
		p, since, steady := b.steadySince(c)
		lasts := time.Since(since)
		slow := max(p.latency[lists].most, p.latency[statuses].most, p.latency[rest].most)
		switch {
		case b.fast(c) && lasts > settled+90*time.Second && state.State != capture.Up:
			w.violated("backend %s answers all at once for %s, and is %s: %v", b.key(), lasts, state.State, state.Err)
		case steady && state.State == capture.Gone && lasts > settled+redial+2*max(slow, p.latency[alive].most) && p.latency[alive].most < c.cfg.silence*3/4 && (slow < c.cfg.silence*3/4 || p.latency[alive].most <= fast):
			w.violated("backend %s answers for %s, and is gone: %v", b.key(), lasts, state.Err)
		case !p.reachable() && lasts > 5*time.Second && state.State != capture.Gone && !p.frozen:
			w.violated("backend %s is not there for %s, and is %s", b.key(), lasts, state.State)
		case p.frozen && lasts > b.silence(c)+5*time.Second && state.State != capture.Gone:
			w.violated("backend %s answers nothing for %s, and is %s", b.key(), lasts, state.State)
		}
	}
}

// condition returns what a process says of a backend.
func (p *proxy) condition(b *entry) admin.BackendHealth {
	for _, h := range p.proxy.Health().Backends {
		if h.Name == b.key() {
			return h
		}
	}
	return admin.BackendHealth{}
}

// shownAs returns the version as which an item is shown in the answer to a call: that of its annotations, or a later one whose
// state a confirmed call has told criproxy before the runtime has listed it. It is -1 if the item has not been so.
func (i *item) shownAs(now shown, c *call) int {
	for v := now.version; v >= 0 && v < len(i.versions) && !i.versions[v].at.After(c.ended); v++ {
		if int(i.versions[v].state) == now.state {
			return v
		}
	}
	return -1
}

// made returns the latest version that a call has made of an item, of those that lists of the process of c must show: it
// was answered before c, and a rule of the profile says what it does. It is -1 if there is none.
func (c *call) made(b *entry, i *item) int {
	v := -1
	for _, one := range b.knows.made[i.id] {
		if one.at.Before(c.began) && (c.proxy.heard(one.process, one.at) || c.proxy.successor && one.process == c.proxy.number-1) {
			v = max(v, one.version)
		}
	}
	return v
}
