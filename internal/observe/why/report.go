package why

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/criproxy/criproxy/internal/base/suggest"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// Options say what to report. The zero value reports everything in the recording.
type Options struct {
	Since time.Time // calls that ended earlier are left out
	Now   time.Time // when the recording ended; zero means with its last event
	Pod   string    // only what concerns this pod, or the whole node: its name, NAMESPACE/NAME, a part of that, its uid, or the beginning of its sandbox's id
	Rules []string  // only these rules, and always that about runtimes: see lost; empty means all
}

// A Report is what the rules have found. Its JSON is stable.
type Report struct {
	Findings []Finding `json:"findings"` // what goes on first, and the worst first of that
	Seen     Seen      `json:"seen"`
}

// Seen is what the rules have looked at.
type Seen struct {
	From     time.Time      `json:"from,omitzero"`
	To       time.Time      `json:"to,omitzero"`
	Calls    int            `json:"calls"` // of clients
	Clients  map[string]int `json:"clients,omitempty"`
	Backends []string       `json:"backends,omitempty"`
	Missed   uint64         `json:"missed,omitempty"` // events that are missing
	Pod      string         `json:"pod,omitempty"`    // the pod that was asked for
	About    int            `json:"about,omitempty"`  // calls about it
	Last     string         `json:"last,omitempty"`   // the last of them that changed something
	Failed   int            `json:"-"`                // of the calls about it: those that failed, or wait for an answer
	Part     string         `json:"-"`                // the part of Pod's name that was asked for
	Near     string         `json:"-"`                // names of pods like the one that no call is about, for people

	Asked time.Time `json:"asked,omitzero"`  // since when to look; missing if at all of the recording
	Whole time.Time `json:"whole,omitzero"`  // since when all calls are there
	Limit string    `json:"limit,omitempty"` // what cannot be seen of what was asked for, for people

	Inferred bool `json:"inferred,omitempty"` // no conditions of runtimes are recorded: outages are inferred from calls
}

// Verdict says that nothing is wrong, as far as was seen.
func (s *Seen) Verdict() string {
	if s.Calls == 0 {
		return "Nothing is known: there were no calls to look at."
	}
	of, since := "", ""
	if s.Pod != "" {
		of = " with " + s.Pod
	}
	if s.Limit != "" {
		since = " since " + s.Whole.UTC().Format("15:04:05")
	}
	return fmt.Sprintf("Nothing is wrong%s that the calls%s show.", of, since)
}

// OfPod returns what is to be said of the pod that was asked for before findings that are not about it; "" if one is, or if there
// are none.
func (r *Report) OfPod() string {
	of, where := &r.Seen, "runtime"
	if of.Pod == "" || len(r.Findings) == 0 {
		return ""
	}
	for _, f := range r.Findings {
		if len(f.Pods) > 0 {
			return ""
		}
		if len(f.Backends) == 0 {
			where = "node"
		}
	}
	switch {
	case of.About == 0:
		return fmt.Sprintf("No call is about %s%s. On the node:", of.Pod, of.Near)
	case of.Failed > 0:
		return fmt.Sprintf("Of %s about %s, %d failed or wait for an answer. On its %s:", capture.Count(of.About, "call"), of.Pod, of.Failed, where)
	}
	return fmt.Sprintf("Nothing is wrong with %s that its %s show. On its %s:", of.Pod, capture.Count(of.About, "call"), where)
}

// named returns the pod that the calls are about if none is about pod and only one has pod as a part of its name, between marks.
// Otherwise it returns pod, and says about which pods with a name like that there are calls.
func (v *view) named(pod string) (name, near string) {
	if pod == "" || slices.ContainsFunc(v.calls, func(c *call) bool { return !c.own && c.concerns(pod) }) {
		return pod, ""
	}
	names := podsOf(v.calls)
	some := filter(names, func(name string) bool { return strings.Contains(name, pod) })
	part := regexp.MustCompile(`(^|[^0-9A-Za-z])` + regexp.QuoteMeta(pod) + `($|[^0-9A-Za-z])`)
	switch {
	case len(some) == 1 && part.MatchString(some[0]):
		return some[0], ""
	case len(some) > 0:
		return pod, ", but some are about " + and(few(some))
	case !strings.Contains(pod, "/"):
		for i, name := range names {
			names[i] = name[strings.Index(name, "/")+1:]
		}
	}
	return pod, suggest.Nearest(pod, names)
}

// limit returns since when all calls are there and, if something before that was asked for, what cannot be seen of it. With a
// zero time, all of the recording was asked for.
func (v *view) limit(asked time.Time) (whole time.Time, limit string) {
	whole = later(v.begin, v.whole)
	from, all := asked, "the last "
	if asked.IsZero() {
		from, all = v.begin, "this recording of "
	}
	if !whole.After(from.Add(jump)) {
		return whole, ""
	}
	all, last := all+span(v.now.Sub(from)), span(max(v.now.Sub(whole), 0))
	if v.whole.After(v.begin) {
		return whole, fmt.Sprintf("Of %s, all calls of the last %s are recorded. Of the time before, some are missing: those that failed, were slow or changed something are kept longest. "+
			"A runtime that hung then, a flood of calls, or a kubelet that stood still may not show.", all, last)
	}
	return whole, fmt.Sprintf("Of %s, only the last %s are recorded. Of the time before, only outages show.", all, last)
}

// Report returns what the rules find in the events so far.
func (l *Look) Report(o Options) Report {
	v := l.view(o)
	r := Report{Findings: []Finding{}, Seen: Seen{Missed: v.missed, Clients: map[string]int{}, Asked: o.Since, Inferred: l.conditions.Lacking()}}
	asked := o.Pod
	if o.Pod, r.Seen.Near = v.named(asked); o.Pod != asked {
		r.Seen.Part = asked
	}
	r.Seen.Pod = o.Pod
	r.Seen.Whole, r.Seen.Limit = v.limit(o.Since)
	for _, c := range v.calls {
		if !c.own {
			r.Seen.Calls++
			r.Seen.Clients[c.from]++
		}
		if o.Pod != "" && !c.own && c.concerns(o.Pod) {
			r.Seen.About++
			if c.failed() || !c.ended && !c.stream && c.took >= leastWait {
				r.Seen.Failed++
			}
			if !slices.Contains(looks, c.method) {
				r.Seen.Last = c.proof().Text + ", at " + clock(c.began)
			}
		}
		r.Seen.To = later(r.Seen.To, c.end())
	}
	if r.Seen.Backends = runtimesOf(v.calls); len(v.calls) > 0 {
		r.Seen.From = v.calls[0].began
	}
	for _, rule := range rules {
		if len(o.Rules) > 0 && rule != &runtimeChanged && !slices.Contains(o.Rules, rule.Name) {
			continue
		}
		for _, f := range rule.find(v) {
			v.endWithPods(rule, &f)
			if o.Pod == "" || v.concerns(&f, o.Pod) {
				f.Older = rule != &runtimeChanged && f.Since.Before(v.begin.Add(jump)) // changes say when they began
				r.Findings = append(r.Findings, rule.complete(f))
			}
		}
	}
	slices.SortStableFunc(r.Findings, func(a, b Finding) int { return b.Last.Compare(a.Last) })
	consequences(Sort(r.Findings))
	return r
}

// JSON returns the report about everything, as criproxy why -o json prints it.
func (l *Look) JSON() []byte { return l.Report(Options{}).JSON() }

// JSON returns the report as criproxy why -o json prints it.
func (r Report) JSON() []byte {
	b, err := json.Marshal(r)
	if err != nil { // cannot happen: it holds strings, numbers and times of this century
		return nil
	}
	return b
}

// Count returns how many findings last, by rule and level.
func (l *Look) Count(now time.Time) map[[2]string]int {
	n := map[[2]string]int{}
	for _, r := range rules {
		n[[2]string{r.Name, string(Error)}], n[[2]string{r.Name, string(Warning)}] = 0, 0
	}
	for _, f := range l.Report(Options{Now: now}).Findings {
		if f.Lasts() {
			n[[2]string{f.Rule, string(f.Level)}]++
		}
	}
	return n
}

// looks are methods that do nothing to a pod.
var looks = []string{"PodSandboxStatus", "ContainerStatus", "ListPodSandbox", "ListContainers", "ImageStatus", "ContainerStats", "PodSandboxStats", "ExecSync"}

// maxProofs is how many calls a finding shows.
const maxProofs = 3

// shown returns a finding that calls show. Its command selects all of them.
func shown(by []*call) Finding {
	f := Finding{Level: Warning, Count: len(by), Since: by[0].began, Backends: runtimesOf(by)}
	of := 0
	for i, c := range by {
		f.Last = later(f.Last, c.end())
		if i < maxProofs-1 || i == len(by)-1 {
			f.Evidence = append(f.Evidence, c.proof())
		}
		if c.pod() != "" {
			of++
			f.sandbox = cmp.Or(c.sandbox(), f.sandbox)
		}
	}
	f.Pods, f.Show = podsOf(by), "-method '"+strings.Join(methodsOf(by), "|")+"'"
	if len(f.Pods) == 1 && of == len(by) {
		f.Show += " -follow-pod " + f.Pods[0]
	}
	if slices.ContainsFunc(by, func(c *call) bool { return c.own }) {
		f.Show += " -own"
	}
	return f
}

// decided adds the calls from which the finding follows to its evidence, since [shown] takes only the first ones and the
// last one. A call may be nil, or in the evidence already.
func (f *Finding) decided(by ...*call) {
	for _, c := range by {
		if c == nil {
			continue
		}
		if p := c.proof(); !slices.Contains(f.Evidence, p) {
			f.Evidence = append(f.Evidence, p)
		}
	}
	slices.SortStableFunc(f.Evidence, func(a, b Proof) int { return a.Time.Compare(b.Time) })
}

// proof returns the call as a line.
func (c *call) proof() Proof {
	words := []string{c.method}
	if o := c.object(); o != "" {
		words = append(words, o)
	}
	words = append(words, round(c.took))
	switch {
	case !c.ended:
		words = append(words, "under way")
	case c.code == codes.OK && c.lacks:
		words = append(words, "OK: it is not there")
	case c.code == codes.OK && c.said != "":
		words = append(words, "OK: "+c.said)
	case c.code == codes.OK:
		words = append(words, "OK")
	default:
		words = append(words, c.code.String()+": "+c.message)
	}
	return Proof{Time: c.began, Text: strings.Join(words, " ")}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// clock returns a time as the views of calls show it.
func clock(t time.Time) string { return t.UTC().Format("15:04:05.000") }

// round returns a duration for people.
func round(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		d = d.Round(time.Second)
	case d >= time.Second:
		d = d.Round(100 * time.Millisecond)
	case d >= time.Millisecond:
		d = d.Round(time.Millisecond)
	default:
		d = d.Round(time.Microsecond)
	}
	return d.String()
}

// span returns a duration for people, as round does, without zeros at its end: 1h and not 1h0m0s.
func span(d time.Duration) string {
	s := round(d)
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// times says how often something happened.
func times(n int) string {
	switch n {
	case 1:
		return "once"
	case 2:
		return "twice"
	}
	return fmt.Sprintf("%d times", n)
}

// median returns the middle one of the durations of calls, zero if there are none.
func median(of []*call) time.Duration {
	if len(of) == 0 {
		return 0
	}
	var all []time.Duration
	for _, c := range of {
		all = append(all, c.took)
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// longest returns the call that took longest.
func longest(of []*call) *call {
	return slices.MaxFunc(of, func(a, b *call) int { return cmp.Compare(a.took, b.took) })
}
