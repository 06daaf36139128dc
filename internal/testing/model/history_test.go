package model

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// asks returns the answer of the admin socket of a process.
func (p *proxy) asks(path string) []byte {
	answer := httptest.NewRecorder()
	p.proxy.Admin().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
	return answer.Body.Bytes()
}

// changes returns what a process says of itself and of those before it: criproxy events.
func (p *proxy) changes() (all []capture.Change) {
	d := json.NewDecoder(bytes.NewReader(p.asks("/changes")))
	for d.More() {
		var c capture.Change
		p.world.must(d.Decode(&c))
		all = append(all, c)
	}
	return all
}

// said is a line of the log about the condition of a backend.
type said struct {
	at            time.Time
	backend, what string
}

// held is a time in which a process that hands over noted nothing: another one might have taken over.
type held struct{ from, to time.Time }

// noted returns when what happened at a time was noted. writing is held.
func (w *world) noted(at time.Time) time.Time {
	for _, h := range w.held {
		if !at.Before(h.from) && at.Before(h.to) {
			return h.to
		}
	}
	return at
}

var aboutBackend = regexp.MustCompile(`"msg"="Backend is (up|slow|gone)\b.*"backend"="([^"]*)"`)

// logs gets a line of the log of any process.
func (w *world) logs(_, line string) {
	w.trace("log: %s", line)
	if strings.Contains(line, "A mistake in criproxy") {
		w.writing.Lock()
		defer w.writing.Unlock()
		w.mistake = line
	}
	if m := aboutBackend.FindStringSubmatch(line); m != nil {
		w.writing.Lock()
		defer w.writing.Unlock()
		w.said = append(w.said, said{time.Now(), m[2], m[1]})
	}
}

// judgeMistakes reports a panic, which ends only the call or the task that it happens in. mu is held.
func (w *world) judgeMistakes() {
	w.writing.Lock()
	mistake := w.mistake
	w.writing.Unlock()
	if mistake != "" {
		w.violated("%s", mistake)
	}
}

// judgeHistory reports what events, status and log do not say alike. What changes at this moment is judged again a
// second later.
func (w *world) judgeHistory() {
	w.mu.Lock()
	p := w.now
	w.mu.Unlock()
	if p == nil {
		return
	}
	first := p.inconsistent()
	if len(first) == 0 || !w.sleep(time.Second) {
		return
	}
	second := p.inconsistent()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.now != p || p.ctx.Err() != nil {
		return
	}
	for _, wrong := range first {
		if slices.Contains(second, wrong) {
			w.violated("process %d: %s", p.number, wrong)
		}
	}
}

// inconsistent returns what the events of a process do not say as its status and its log do.
func (p *proxy) inconsistent() (wrong []string) {
	all := p.changes()
	began := 0 // where this process began, or one before it that handed over
	for i, c := range all {
		if c.What == capture.Serving {
			began = i
		}
	}
	for began > 0 && !all[began-1].Time.Before(p.began) { // it notes backends before it serves
		began--
	}
	latest := map[string]capture.Change{} // :: backend
	if p.keeps {
		for _, c := range all[:began] {
			if latest[c.Backend] = c; c.What == capture.Up { // nobody knows what happened between the processes
				delete(latest, c.Backend)
			}
		}
	}
	var at map[string]string
	for _, c := range all[began:] {
		if c.Addresses != nil {
			at = c.Addresses
		}
		if c.Backend == "" {
			continue
		}
		before, known := latest[c.Backend]
		latest[c.Backend] = c
		switch {
		case c.What == c.Was:
			wrong = append(wrong, fmt.Sprintf("%s is a change from %s to %s", told(c), c.Was, c.What))
		case !known && p.keeps && c.Was != "":
			wrong = append(wrong, fmt.Sprintf("%s says that it was %s, which nobody has told", told(c), c.Was))
		case !known:
		case before.What == capture.Removed && c.Was != "":
			wrong = append(wrong, fmt.Sprintf("%s follows %s", told(c), told(before)))
		case before.What != capture.Removed && (c.Was != before.What || !c.Since.Equal(before.Time)):
			wrong = append(wrong, fmt.Sprintf("%s says that it was %s since %s, and follows %s", told(c), c.Was, c.Since.Format(time.StampMilli), told(before)))
		case before.What != capture.Removed && c.Time.Before(before.Time): // after that it goes on from another name
			wrong = append(wrong, fmt.Sprintf("%s follows the later %s", told(c), told(before)))
		}
		if known && c.Was != "" && c.What != capture.Removed && !p.world.logged(c) {
			wrong = append(wrong, fmt.Sprintf("%s is not in the log", told(c)))
		}
	}
	wrong = append(wrong, p.unlikeConfig(latest, at)...)
	wrong = append(wrong, p.unlikeLog(all[began:])...)
	wrong = append(wrong, p.unlikeTruth(all[began:])...)
	var report admin.Report
	p.world.must(json.Unmarshal(p.asks("/status"), &report))
	now := p.changes()
	for _, b := range report.Backends {
		c, known := latest[b.Name]
		if slices.ContainsFunc(now[max(0, len(now)-20):], func(n capture.Change) bool { return n.Backend == b.Name && n.Time.After(c.Time) }) {
			continue // it has changed meanwhile
		}
		switch {
		case b.State == capture.Connecting || !known:
			continue // a runtime that connects has no condition; without an event it is as before this process
		case c.What != b.State || !c.Time.Equal(b.Since):
			wrong = append(wrong, fmt.Sprintf("the status of %s is %s since %s, and the latest event is %s", b.Name, b.State, b.Since.Format(time.StampMilli), told(c)))
		}
		wrong = append(wrong, outagesUnlike(b, c)...)
	}
	return wrong
}

// unlikeConfig returns what the events do not say as the configuration does. at has where the backends are.
func (p *proxy) unlikeConfig(latest map[string]capture.Change, at map[string]string) (wrong []string) {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	want := map[string]string{}
	for i := range p.cfg.backends {
		b := &p.cfg.backends[i]
		want[b.key()] = fmt.Sprintf("/run/%s/%d", b.runtime.name, b.address)
	}
	if !maps.Equal(want, at) {
		wrong = append(wrong, fmt.Sprintf("the backends are at %v, and the events say at %v", want, at))
	}
	for _, name := range slices.Sorted(maps.Keys(latest)) {
		if c := latest[name]; name != "" && (c.What != capture.Removed) != (want[name] != "") {
			wrong = append(wrong, fmt.Sprintf("the backends are at %v, and the latest event is %s", want, told(c)))
		}
	}
	return wrong
}

// unlikeTruth returns the latest events that are not what happened to the runtimes.
func (p *proxy) unlikeTruth(all []capture.Change) (wrong []string) {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	for i := range p.cfg.backends {
		b := &p.cfg.backends[i]
		for _, c := range all {
			if c.Backend == b.key() && c.What == capture.Slow && strings.HasPrefix(c.Why, "was gone") {
				wrong = append(wrong, fmt.Sprintf("%s gives a reason that is over", told(c)))
			}
			if c.Backend != b.key() || c.Time.Sub(p.cfg.since) < settled || time.Since(c.Time) > time.Minute {
				continue
			}
			before := c.Time.Add(-10 * time.Millisecond)
			well := b.fast(&call{cfg: p.cfg, proxy: p, began: before, ended: before})
			if (c.What == capture.Slow || c.What == capture.Gone) && well && b.fast(&call{cfg: p.cfg, proxy: p, began: before, ended: c.Time}) {
				wrong = append(wrong, fmt.Sprintf("%s, and it answers all at once", told(c)))
			}
			if n, ok := b.podsAt(before); ok && well && c.Pods != nil && *c.Pods != n {
				wrong = append(wrong, fmt.Sprintf("%s, and it has %d pods", told(c), n))
			}
		}
	}
	return wrong
}

// podsAt returns how many sandboxes a backend had at a time, unless that was just changing.
func (b *entry) podsAt(at time.Time) (n int, ok bool) {
	changing := func(t time.Time) bool { return !t.IsZero() && !t.After(at) && at.Sub(t) < 10*time.Second }
	for _, i := range b.runtime.items[sandboxes] {
		if changing(i.created) || changing(i.removed) {
			return 0, false
		}
		if !i.created.After(at) && (i.removed.IsZero() || i.removed.After(at)) {
			n++
		}
	}
	return n, true
}

// unlikeLog returns the lines of the log that no event has.
func (p *proxy) unlikeLog(all []capture.Change) (wrong []string) {
	p.world.mu.Lock()
	crashed := p.world.crashed
	p.world.mu.Unlock()
	p.world.writing.Lock()
	defer p.world.writing.Unlock()
	for _, s := range p.world.said {
		if s.at.Before(all[0].Time) || s.at.Sub(crashed) < time.Minute {
			continue // of an earlier process
		}
		if !slices.ContainsFunc(all, func(c capture.Change) bool {
			return c.Backend == s.backend && c.What == s.what && s.at.Sub(p.world.noted(c.Time)) < 2*time.Second
		}) {
			wrong = append(wrong, fmt.Sprintf("the log says at %s that %s is %s, and no event does", s.at.Format(time.StampMilli), s.backend, s.what))
		}
	}
	return wrong
}

// outagesUnlike returns what is wrong with the outages of a backend whose latest change is c.
func outagesUnlike(b admin.Backend, c capture.Change) (wrong []string) {
	goesOn := c.What == capture.Slow || c.What == capture.Gone
	for i, o := range b.Outages {
		switch {
		case i == 0 && goesOn && (o.State != c.What || !o.From.Equal(c.Time) || !o.To.IsZero()):
			wrong = append(wrong, fmt.Sprintf("the latest outage of %s is %+v, and the latest event is %s", b.Name, o, told(c)))
		case i == 0 && !goesOn && (c.Was == capture.Slow || c.Was == capture.Gone) && (o.State != c.Was || !o.From.Equal(c.Since) || !o.To.Equal(c.Time)):
			wrong = append(wrong, fmt.Sprintf("the latest outage of %s is %+v, and the latest event is %s", b.Name, o, told(c)))
		case i > 0 && (o.To.IsZero() || o.From.After(o.To)): // those of two runtimes that had the name may overlap
			wrong = append(wrong, fmt.Sprintf("outage %d of %s is %+v", i, b.Name, o))
		}
	}
	if goesOn && len(b.Outages) == 0 {
		wrong = append(wrong, fmt.Sprintf("%s has no outage, and the latest event is %s", b.Name, told(c)))
	}
	return wrong
}

// told describes a change.
func told(c capture.Change) string {
	return fmt.Sprintf("%q at %s", c.String(), c.Time.Format(time.StampMilli))
}

// logged reports whether the log has a change, at its time or when another process had not taken over after all.
func (w *world) logged(c capture.Change) bool {
	w.writing.Lock()
	defer w.writing.Unlock()
	return slices.ContainsFunc(w.said, func(s said) bool {
		return s.backend == c.Backend && s.what == c.What && !s.at.Before(c.Time) && s.at.Sub(w.noted(c.Time)) < 2*time.Second
	})
}
