package page

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// Bounds of a story. It forgets what is oldest.
const (
	maxTold = 2000
	maxPods = 4000
	maxRuns = 100 // of a pod
	maxGaps = 1000
)

// A Story is what a page shows besides the calls: the conditions of the runtimes, the pods that lists have shown, and
// what is missing. The zero Story is empty. Only one goroutine at a time may use it.
type Story struct {
	changes []capture.Change // by time
	pods    map[string]*listed
	counts  map[string]counted // :: runtime → how many pods it has, as far as that is known
	gaps    []gap
	of      map[string]*recording // :: node
	node    string                // where the recording is from that the story takes at present, if there are several
}

// A recording is what a story knows of the recording of a node.
type recording struct {
	latest     uint64           // number of the latest call that began
	begun      bool             // it has begun, and no call of it yet
	conditions calls.Conditions // whether it has those of its runtimes
}

// counted is a number of pods.
type counted struct {
	at   time.Time // when the runtime had so many
	pods int
}

// listed is a pod that lists or statuses have shown. Its JSON is for the page.
type listed struct {
	Namespace string  `json:"namespace"`
	Pod       string  `json:"pod"`
	UID       string  `json:"uid"`
	Backend   string  `json:"backend"`        // empty as long as the recording does not show it
	From      float64 `json:"from"`           // when it was created or, if nobody said that, when it was shown first
	To        float64 `json:"to"`             // when it was shown last
	Gone      float64 `json:"gone,omitempty"` // when a list of all pods of its runtime first lacked it
	Node      string  `json:"node,omitempty"`
	Runs      []run   `json:"runs,omitempty"`
	created   bool    // From is when it was created
}

// run is a container that lists or statuses have shown as running.
type run struct {
	Container string  `json:"container"`
	ID        string  `json:"id"`   // short, and without the prefix of its runtime
	From      float64 `json:"from"` // the first moment at which it ran, as far as is known
	shown     float64 // when it was shown first
	started   float64 // when it started or was created; zero if nobody said that
}

// runs notes that a container was shown as running at a time, and when it started or was created: zero if that was not
// said. It reports whether that is news.
func (p *listed) runs(container, id string, shown float64, started time.Time) (news bool) {
	at := slices.IndexFunc(p.Runs, func(r run) bool { return r.ID == id })
	if news = at < 0; news {
		p.Runs = append(p.Runs[max(len(p.Runs)+1-maxRuns, 0):], run{Container: container, ID: id, shown: shown})
		at = len(p.Runs) - 1
	}
	r := &p.Runs[at]
	was := r.From
	r.shown = min(r.shown, shown)
	if !started.IsZero() {
		r.started = max(r.started, unix(started)) // it was created before it started
	}
	if r.From = r.shown; r.started > 0 {
		r.From = min(r.shown, r.started)
	}
	return news || r.From != was
}

// show notes that a pod was shown between two times, and when it was created: zero if that was not said.
func (p *listed) show(from, to float64, created time.Time) {
	switch at := unix(created); {
	case created.IsZero() && !p.created:
		p.From = min(p.From, from)
	case !created.IsZero() && (!p.created || at < p.From): // a pod can have several sandboxes
		p.From, p.created = at, true
	}
	p.To, p.Gone = max(p.To, to), 0
}

// A gap is a place where something is missing. Its JSON is for the page.
type gap struct {
	Time   float64 `json:"time"` // in milliseconds; zero is before all calls
	Calls  uint64  `json:"calls,omitempty"`
	Events uint64  `json:"events,omitempty"`
	node   string
}

// Begin takes the header of a recording, before its events.
func (s *Story) Begin(h *capture.FileHeader) {
	of := s.recording()
	of.begun = true
	of.conditions.Begin(h)
	for _, b := range h.Backends {
		if b.State != "" {
			s.put(capture.Change{Time: b.Since, What: b.State, Backend: b.Name, Why: b.Why, Pods: b.Pods, Containers: b.Containers})
			s.count(named(s.node, b.Name), h.Created, b.Pods)
		}
	}
}

// Take takes an event of the recording.
func (s *Story) Take(ev *capture.Event) {
	switch {
	case ev.Kind == capture.Changed:
		s.Change(*ev.Change)
	case ev.Kind == capture.Missed:
		s.gap(gap{Time: unix(ev.Time), Events: ev.Missed})
	case ev.Kind == capture.Start && !ev.Again && (ev.Leg == 0 || ev.Own):
		of := s.recording()
		if of.begun && ev.Call > of.latest+1 { // calls have numbers
			g := gap{Calls: ev.Call - of.latest - 1, node: s.node}
			if of.latest > 0 {
				g.Time = unix(ev.Time)
			}
			s.gap(g)
		}
		of.latest, of.begun = max(of.latest, ev.Call), false
	}
}

// known reports whether the recording of a node has the conditions of its runtimes. If none has, the page infers outages
// from calls.
func (s *Story) known() bool {
	for _, of := range s.of {
		if !of.conditions.Lacking() {
			return true
		}
	}
	return false
}

// recording returns the recording that the story takes at present.
func (s *Story) recording() *recording {
	if s.of == nil {
		s.of = map[string]*recording{}
	}
	if s.of[s.node] == nil {
		s.of[s.node] = &recording{}
	}
	return s.of[s.node]
}

func (s *Story) gap(g gap) {
	s.gaps = append(s.gaps, g)
	s.gaps = s.gaps[max(len(s.gaps)-maxGaps, 0):]
}

// Change takes a change that may be there already.
func (s *Story) Change(c capture.Change) {
	s.recording().conditions.Change(&c)
	s.put(c)
}

func (s *Story) put(c capture.Change) {
	c.Backend, c.Plugin = named(s.node, c.Backend), named(s.node, c.Plugin)
	s.count(c.Backend, c.Time, c.Pods)
	order := func(a, b capture.Change) int {
		return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.Backend, b.Backend), cmp.Compare(a.Plugin, b.Plugin), cmp.Compare(a.What, b.What))
	}
	at, found := slices.BinarySearchFunc(s.changes, c, order)
	switch {
	case !found:
		s.changes = slices.Insert(s.changes, at, c)
	case s.changes[at].PID == 0: // of a header, which says less
		s.changes[at] = c
	}
	s.changes = s.changes[max(len(s.changes)-maxTold, 0):]
}

// count notes how many pods a runtime has at a time, and reports whether that is news. A number of an earlier time is none.
func (s *Story) count(backend string, at time.Time, pods *int) (news bool) {
	was, known := s.counts[backend]
	if pods == nil || at.Before(was.at) {
		return false
	}
	if s.counts == nil {
		s.counts = map[string]counted{}
	}
	s.counts[backend] = counted{at, *pods}
	return !known || was.pods != *pods
}

// Add takes a call that the page shows. It learns pods from lists and statuses, and forgets what the call lists.
func (s *Story) Add(c *calls.Call) (news bool) {
	older := func(g gap) bool { return g.Time == 0 && g.node == s.node && c.ID <= g.Calls && c.ID > 0 }
	if at := slices.IndexFunc(s.gaps, older); at >= 0 {
		s.gaps[at].Calls-- // it began before the first one that the recording has as a whole
	}
	if of := s.of[s.node]; of != nil {
		known := s.known()
		of.conditions.Call(c)
		news = known != s.known()
	}
	began, ended := unix(c.Began), unix(c.Began.Add(c.Took))
	shown := c.Listed
	if !c.About.Created.IsZero() || c.About.Running {
		shown = append(shown, c.About)
	}
	for _, item := range shown {
		if item.Pod == "" {
			continue
		}
		p, isNew := s.pod(item.UID, item.Namespace, item.Pod, began)
		news = news || isNew
		if p.Backend == "" {
			p.Backend = named(s.node, c.HomeOf(item))
			news = news || p.Backend != ""
		}
		if item.Running && len(item.IDs) > 0 {
			news = p.runs(item.Container, calls.ShortID(c.Bare(item.IDs[0])), began, item.Started) || news
		}
		since, gone := p.From, p.Gone
		p.show(began, ended, item.Created)
		news = news || p.From != since || gone > 0
	}
	for _, l := range c.Legs {
		if !whole(c, l) {
			continue
		}
		backend := named(s.node, l.Backend)
		for _, p := range s.pods {
			if p.Backend == backend && p.To < began && p.Gone == 0 {
				p.Gone, news = began, true
			}
		}
		news = s.count(backend, c.Began.Add(c.Took), s.listed(c, backend)) || news
	}
	c.Listed = nil
	s.bound()
	return news
}

// whole reports whether a call lists all pods of a leg's backend.
func whole(c *calls.Call, l *calls.Leg) bool {
	return calls.ShortMethod(l.Method) == "ListPodSandbox" && l.Number != 0 && l.Ended && !l.Failed() && l.Requests.Count == 1 && forAll(l.Requests.Last) &&
		c.Ended && !c.Failed() && !c.Front().Replies.Last.Truncated
}

// listed returns how many of the pods that a call lists are on a runtime, or nil if that is not known of each of them.
func (s *Story) listed(c *calls.Call, backend string) *int {
	n := 0
	for _, item := range c.Listed {
		switch p := s.pods[podKey(s.node, item.UID, item.Namespace, item.Pod)]; {
		case p == nil || p.Backend == "":
			return nil
		case p.Backend == backend:
			n++
		}
	}
	return &n
}

// forAll reports whether the request of a list has no filter, or an empty one, as crictl sends. A filter with an empty
// state selects the pods that are ready.
func forAll(request calls.Message) bool {
	return request.Size == len(request.Payload) && strings.TrimPrefix(string(request.Payload), emptyFilter) == ""
}

const emptyFilter = "\x0a\x00" // field 1, a message without fields

// Pods takes what criproxy says at a time of all pods: also those that no recorded call is about.
func (s *Story) Pods(all []admin.Pod, now time.Time) {
	for _, pod := range all {
		if pod.Name == "" {
			continue
		}
		p, _ := s.pod(pod.UID, pod.Namespace, pod.Name, unix(now))
		p.Backend = named(s.node, pod.Backend)
		p.show(unix(now), unix(now), pod.Created)
	}
	s.bound()
}

// pod returns a pod, which was shown at a time. isNew says that it was not shown before.
func (s *Story) pod(uid, namespace, name string, shown float64) (p *listed, isNew bool) {
	key := podKey(s.node, uid, namespace, name)
	if p = s.pods[key]; p != nil {
		return p, false
	}
	if s.pods == nil {
		s.pods = map[string]*listed{}
	}
	p = &listed{Namespace: namespace, Pod: name, UID: uid, From: shown, Node: s.node}
	s.pods[key] = p
	return p, true
}

func podKey(node, uid, namespace, name string) string { return node + cmp.Or(uid, namespace+"/"+name) }

// bound forgets the pods that were shown the longest ago.
func (s *Story) bound() {
	for len(s.pods) > maxPods {
		oldest := slices.MinFunc(slices.Collect(maps.Keys(s.pods)), func(a, b string) int { return cmp.Compare(s.pods[a].To, s.pods[b].To) })
		delete(s.pods, oldest)
	}
}

// JSON returns the story for the page.
func (s *Story) JSON() []byte {
	pods := slices.SortedFunc(maps.Values(s.pods), func(a, b *listed) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.UID, b.UID))
	})
	type said struct {
		capture.Change
		Condition bool   `json:"condition,omitempty"` // of a runtime
		Says      string `json:"says"`
	}
	changes, known := []said{}, s.known()
	for _, c := range s.changes {
		if known || !c.IsCondition() { // else the page infers all conditions, also those that a header has
			changes = append(changes, said{c, c.IsCondition(), c.String()})
		}
	}
	counts := map[string]int{}
	for backend, c := range s.counts {
		counts[backend] = c.pods
	}
	return marshal(map[string]any{"known": known, "changes": changes, "pods": list(pods), "counts": counts, "gaps": list(s.gaps)})
}

// named returns what the page calls a runtime, or another part, of a node. node is empty if there is only one.
func named(node, name string) string {
	if node == "" || name == "" {
		return name
	}
	return node + "/" + name
}

// list returns a list that is not null in JSON.
func list[E any](all []E) []E { return append([]E{}, all...) }

// unix returns a time in the unit of the page.
func unix(t time.Time) float64 { return float64(t.UnixMicro()) / 1e3 }
