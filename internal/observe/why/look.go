package why

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/cri"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// A Look is what the rules know of a recording. The zero Look must first follow one. Only one goroutine at a time may use
// it.
type Look struct {
	assembler *calls.Assembler
	words     map[string]string // :: text → the same text, kept once
	items     map[string]int    // :: method → how many items its latest list has

	calls     []*call
	changes   []*capture.Change
	addresses map[string]string // :: runtime → where it is
	cri       bool              // a call of CRI was seen

	last   time.Time            // of all events
	at     time.Time            // of the latest event, by the clock of the machine,
	mono   time.Duration        // and by one that is never set
	torn   time.Time            // before it, calls that seem to be under way may have ended without a trace
	lost   map[*calls.Call]bool // so may these
	pauses []time.Time
	lead   time.Duration // of the first event, if it is a change, by the clock that is never set
	begin  time.Time     // of the events: there may have been others before it
	whole  time.Time     // before it, quick calls may have been forgotten

	conditions calls.Conditions
}

// New returns a Look for recordings of an API. names must not be nil.
func New(schema *codec.Schema, names calls.Namer) *Look {
	a := calls.NewAssembler(schema, names)
	a.KeepBytes = KeepBytes
	l := &Look{}
	l.Follow(a)
	return l
}

// Follow makes l look at the calls of a recording that the caller assembles with a, and passes to [Look.Take]. After a
// handover, that is the recording of another process.
func (l *Look) Follow(a *calls.Assembler) {
	if l.assembler = a; l.words == nil {
		l.words, l.items, l.addresses = map[string]string{}, map[string]int{}, map[string]string{}
	}
	l.tear(l.last)
}

// KeepBytes of each message are enough for the fields that rules read.
const KeepBytes = 4096

// Add takes in an event. It does not keep it.
func (l *Look) Add(ev *capture.Event) {
	c, what := l.assembler.Add(ev)
	l.Take(ev, c, what)
}

// Take takes in an event, with what the assembler made of it. It keeps neither.
func (l *Look) Take(ev *capture.Event, c *calls.Call, what calls.What) {
	switch {
	case ev.Kind == capture.Missed:
		l.tear(ev.Time)
		l.whole = ev.Time
	case ev.Kind == capture.End && (ev.Leg == 0 || ev.Own) && what == calls.Nothing: // the call has no beginning
		l.tear(ev.Time)
	case ev.Kind == capture.Changed:
		l.lead = cmp.Or(l.lead, ev.Mono)
	case !ev.Again:
		l.keepTime(ev)
	}
	switch what {
	case calls.Done:
		l.conditions.Call(c)
		if l.lost[c] {
			delete(l.lost, c)
			return
		}
		l.calls = append(l.calls, l.brief(c))
	case calls.Changed:
		l.AddChange(ev.Change)
	}
}

// jump is how far the clock of the machine may be off between two events.
const jump = time.Second

// keepTime compares the two clocks of an event with those of the one before.
func (l *Look) keepTime(ev *capture.Event) {
	step := ev.Time.Sub(l.at) - (ev.Mono - l.mono)
	switch {
	case l.at.IsZero():
		l.begin = ev.Time.Add(min(cmp.Or(l.lead, ev.Mono)-ev.Mono, 0)) // not by the time of a change, which may be of an earlier process
	case ev.Mono < l.mono-jump: // another recording
		l.tear(ev.Time)
		l.lost = map[*calls.Call]bool{}
		for _, c := range l.assembler.UnderWay() {
			l.lost[c] = c.ID != ev.Call // which is of this recording
		}
	case ev.Time.Before(l.at.Add(-jump)): // the clock was set back: give all times by the clock as it is now
		l.shift(step)
	case step > jump: // it was set forward, the machine slept, or this is another recording
		l.tear(ev.Time)
	}
	l.at, l.mono, l.last = ev.Time, ev.Mono, later(l.last, ev.Time)
}

// shift changes all times so far.
func (l *Look) shift(by time.Duration) {
	for _, c := range l.calls {
		c.began = c.began.Add(by)
	}
	for i, c := range l.changes {
		moved := *c
		moved.Time = c.Time.Add(by)
		l.changes[i] = &moved
	}
	for i := range l.pauses {
		l.pauses[i] = l.pauses[i].Add(by)
	}
	l.last, l.begin, l.torn, l.whole = l.last.Add(by), l.begin.Add(by), l.torn.Add(by), l.whole.Add(by)
}

// AddChange takes in a change that may be older than the events, or there already.
func (l *Look) AddChange(c *capture.Change) {
	l.conditions.Change(c)
	l.put(c)
}

func (l *Look) put(c *capture.Change) {
	if i := slices.IndexFunc(l.changes, func(o *capture.Change) bool {
		return o.Time.Equal(c.Time) && o.What == c.What && o.Backend == c.Backend && o.Plugin == c.Plugin
	}); i >= 0 {
		if l.changes[i].PID == 0 { // of a header, which says less
			l.changes[i] = c
		}
		return
	}
	if c.What == capture.Serving || c.What == capture.Stopped || c.What == capture.HandedOver {
		l.tear(c.Time) // another process does not know the calls under way
	}
	if !c.Missing.IsZero() {
		l.whole = later(l.whole, c.Time)
	}
	l.changes = append(l.changes, c)
	maps.Copy(l.addresses, c.Addresses)
}

// Begin takes in the conditions of the runtimes when the recording was written: what happened earlier is not an event of
// the recording.
func (l *Look) Begin(h *capture.FileHeader) {
	l.conditions.Begin(h)
	for _, b := range h.Backends {
		l.addresses[b.Name] = b.Address
		if b.State == capture.Slow || b.State == capture.Gone {
			l.put(&capture.Change{Time: b.Since, What: b.State, Backend: b.Name, Why: b.Why, Pods: b.Pods, Containers: b.Containers})
		}
	}
}

// Forget forgets the calls that ended before a time, and the changes before it that are over.
func (l *Look) Forget(before time.Time) {
	l.calls = slices.DeleteFunc(l.calls, func(c *call) bool { return c.end().Before(before) })
	l.begin = later(l.begin, before)
	l.changes = changesSince(l.changes, before)
	l.pauses = slices.DeleteFunc(l.pauses, before.After)
	clear(l.words)
}

// changesSince returns the changes from a time on, and of each runtime the one that made it slow or gone at that time.
func changesSince(all []*capture.Change, since time.Time) (kept []*capture.Change) {
	latest := map[string]*capture.Change{} // :: runtime → its latest change before since
	for _, c := range all {
		if was := latest[c.Backend]; c.IsCondition() && c.Time.Before(since) && (was == nil || !c.Time.Before(was.Time)) {
			latest[c.Backend] = c
		}
	}
	for _, c := range all {
		if !c.Time.Before(since) || latest[c.Backend] == c && (c.What == capture.Slow || c.What == capture.Gone) {
			kept = append(kept, c)
		}
	}
	return kept
}

// tear notes that events are missing around a time.
func (l *Look) tear(t time.Time) {
	l.torn = later(l.torn, t)
	l.pauses = append(l.pauses, t)
}

// tooLate is how a call ends whose client gives it up.
const tooLate = "context deadline exceeded"

// brief returns what the rules need of c.
func (l *Look) brief(c *calls.Call) *call {
	front := c.Front()
	b := &call{
		method: l.word(calls.ShortMethod(c.Method)), from: l.word(c.From()), pid: c.Peer.PID, own: c.Own,
		began: c.Began, took: c.Took, timeout: front.Timeout, ended: c.Ended, code: c.Code, message: l.word(c.Message), about: c.About,
	}
	if b.code == codes.Canceled && b.timeout > 0 && b.took >= b.timeout-jump { // a client, or a runtime, ends a call at its deadline
		b.code, b.message = codes.DeadlineExceeded, tooLate
	}
	if n := c.About.Items; n > 0 {
		l.items[b.method] = n
	} else if front.Replies.Bytes > 0 && len(front.Replies.Kept) == 0 { // it was left out: it says nothing new
		b.about.Items = l.items[b.method]
	}
	for _, name := range c.FromCache() {
		b.cached = append(b.cached, l.word(name))
	}
	if b.began.After(l.last.Add(jump)) { // the clock was set back meanwhile
		b.began = l.last.Add(-b.took)
	}
	for _, one := range c.Legs {
		if one.Number != 0 {
			said, has := l.said(one)
			b.legs = append(b.legs, leg{l.word(one.Backend), max(one.Began.Sub(c.Began), 0), one.Took, one.Ended, one.Code, said, has})
		}
	}
	if !l.cri {
		_, l.cri = cri.ShortName(c.Method)
	}
	if m := l.assembler.Schema().Method(c.Method); m != nil {
		b.stream = m.ServerStreams && !strings.HasPrefix(b.method, "Stream") // StreamContainers is a list
	}
	switch b.method {
	case "StopContainer":
		b.asked = time.Duration(decoded(c.Method, front.Requests, &runtimeapi.StopContainerRequest{}).GetTimeout()) * time.Second
	case "ExecSync":
		b.asked = time.Duration(decoded(c.Method, front.Requests, &runtimeapi.ExecSyncRequest{}).GetTimeout()) * time.Second
	case "ImageStatus":
		b.lacks = c.Ended && c.Code == codes.OK && decoded(c.Method, front.Replies, &runtimeapi.ImageStatusResponse{}).GetImage() == nil && !cutOff(front.Replies)
	}
	b.said, b.has = l.said(front)
	return b
}

// said returns what a runtime says of itself in an answer, and the handlers that it has, as its Status says.
func (l *Look) said(of *calls.Leg) (said, has string) {
	switch calls.ShortMethod(of.Method) {
	case "Version":
		if v := decoded(of.Method, of.Replies, &runtimeapi.VersionResponse{}); of.Ended && of.Code == codes.OK {
			said = strings.TrimSpace(v.GetRuntimeName() + " " + v.GetRuntimeVersion())
		}
	case "PodSandboxStatus":
		if s := decoded(of.Method, of.Replies, &runtimeapi.PodSandboxStatusResponse{}).GetStatus(); of.Ended && of.Code == codes.OK && !cutOff(of.Replies) {
			said = unready(s)
		}
	case "Status":
		r := decoded(of.Method, of.Replies, &runtimeapi.StatusResponse{})
		if of.Ended && of.Code == codes.OK {
			said = notReady(r.GetStatus().GetConditions())
		}
		var names []string
		for _, h := range r.GetRuntimeHandlers() {
			if h.GetName() != "" { // the default
				names = append(names, h.GetName())
			}
		}
		if slices.Sort(names); !cutOff(of.Replies) {
			has = strings.Join(names, ", ")
		}
	}
	return l.word(said), l.word(has)
}

// unready returns why kubelet makes a sandbox anew, as PodSandboxChanged in its podsandbox/util.go decides; "" if it does not.
func unready(s *runtimeapi.PodSandboxStatus) string {
	switch {
	case s.GetState() != runtimeapi.PodSandboxState_SANDBOX_READY:
		return s.GetState().String()
	case s.GetNetwork().GetIp() == "" && s.GetLinux().GetNamespaces().GetOptions().GetNetwork() != runtimeapi.NamespaceMode_NODE:
		return noAddress
	}
	return ""
}

// noAddress is said of a sandbox that is ready and has lost its network.
const noAddress = "no address"

// notReady returns the conditions that are not met. Runtimes have others, which kubelet ignores.
func notReady(conditions []*runtimeapi.RuntimeCondition) string {
	var all []string
	for _, c := range conditions {
		if (c.GetType() == runtimeapi.RuntimeReady || c.GetType() == runtimeapi.NetworkReady) && !c.GetStatus() {
			words := []string{c.GetType() + "=false", c.GetReason(), c.GetMessage()}
			all = append(all, strings.Join(slices.DeleteFunc(words, func(s string) bool { return s == "" }), ": "))
		}
	}
	return strings.Join(all, "; ")
}

// word returns s, which it keeps only once.
func (l *Look) word(s string) string {
	if w, ok := l.words[s]; ok {
		return w
	}
	s = strings.Clone(s)
	l.words[s] = s
	return s
}

// decoded decodes the first message of a method of CRI into to, and returns to. What was cut off is missing there, and so is all of
// another API's.
func decoded[M proto.Message](method string, of calls.Messages, to M) M {
	if _, ours := cri.ShortName(method); ours && len(of.Kept) > 0 {
		_ = proto.Unmarshal(of.Kept[0].Payload, to)
	}
	return to
}

// cutOff reports whether a part of the first message is missing.
func cutOff(m calls.Messages) bool { return len(m.Kept) > 0 && m.Kept[0].Truncated }

// kubelets are the names of processes that are a kubelet, or have one in them.
var kubelets = []string{"kubelet", "hyperkube", "k3s", "k3s-server", "rke2", "k0s", "kubelite", "microk8s"}
