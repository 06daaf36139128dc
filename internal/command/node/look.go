package node

import (
	"cmp"
	"hash/maphash"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/base/wire"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// A Look is what the rules know of a recording. Only one goroutine at a time may use it.
type Look struct {
	schema    *codec.Schema
	assembler *calls.Assembler
	words     map[string]string // :: text → the same text, kept once

	calls   []*call
	changes []*capture.Change

	first, last time.Time
	seq         uint64    // of the latest event
	torn        time.Time // before it, calls that seem to be under way may have ended without a trace
	pauses      []time.Time
}

// call is what the rules need of a call.
type call struct {
	method  string // without its service
	from    string // the name of the client's process
	pid     int
	own     bool // criproxy made it itself
	began   time.Time
	took    time.Duration // so far, if it has not ended
	timeout time.Duration // until the client gives up; zero if it never does
	ended   bool
	code    codes.Code
	message string
	about   calls.About
	stream  bool
	legs    []leg
	memory  bool // memory answered for a runtime

	asked time.Duration // the field timeout of a StopContainer or ExecSync
	said  string        // of Version: the version; of Status: why the network or the runtime is not ready
	lacks bool          // of ImageStatus: there is no such image
	all   bool          // of a list: all items were asked for
}

// leg is the part of a call that a runtime had.
type leg struct {
	backend string
	took    time.Duration
	ended   bool
	said    string // as in call
}

// New returns a Look for recordings of an API. names must not be nil.
func New(schema *codec.Schema, names calls.Namer) *Look {
	l := &Look{schema: schema, words: map[string]string{}}
	l.assembler = calls.NewAssembler(schema, &lists{Namer: names, seed: maphash.MakeSeed(), known: map[uint64]described{}})
	l.assembler.KeepBytes = keepBytes
	return l
}

// keepBytes of each message are enough for the fields that rules read.
const keepBytes = 4096

// Add takes in an event. It does not keep it.
func (l *Look) Add(ev *capture.Event) {
	if ev.Kind != capture.Changed {
		if l.first.IsZero() {
			l.first = ev.Time
		}
		if ev.Time.After(l.last) {
			l.last = ev.Time
		}
	}
	if ev.Kind == capture.Missed || ev.Seq != 0 && ev.Seq <= l.seq { // a gap, or another recording
		l.tear(ev.Time)
	}
	l.seq = ev.Seq
	c, what := l.assembler.Add(ev)
	switch what {
	case calls.Done:
		l.calls = append(l.calls, l.brief(c))
	case calls.Changed:
		l.AddChange(ev.Change)
	}
}

// AddChange takes in a change that may be older than the events. It ignores one that it has.
func (l *Look) AddChange(c *capture.Change) {
	if slices.ContainsFunc(l.changes, func(o *capture.Change) bool {
		return o.Time.Equal(c.Time) && o.What == c.What && o.Backend == c.Backend && o.Plugin == c.Plugin
	}) {
		return
	}
	if c.What == capture.Serving || c.What == capture.Stopped || c.What == capture.HandedOver {
		l.tear(c.Time) // another process does not know the calls under way
	}
	l.changes = append(l.changes, c)
}

// tear notes that events are missing around a time.
func (l *Look) tear(t time.Time) {
	if t.After(l.torn) {
		l.torn = t
	}
	l.pauses = append(l.pauses, t)
}

// brief returns what the rules need of c.
func (l *Look) brief(c *calls.Call) *call {
	front := c.Front()
	b := &call{
		method: l.word(calls.ShortMethod(c.Method)), from: l.word(c.From()), pid: c.Peer.PID, own: c.Own,
		began: c.Began, took: c.Took, timeout: front.Timeout, ended: c.Ended, code: c.Code, message: l.word(c.Message), about: c.About,
		memory: len(c.Remembered()) > 0,
	}
	for _, one := range c.Legs {
		if one.Number != 0 {
			b.legs = append(b.legs, leg{backend: l.word(one.Backend), took: one.Took, ended: one.Ended, said: l.said(b.method, one)})
		}
	}
	m := l.schema.Method(c.Method)
	if m == nil {
		return b
	}
	b.stream = m.ServerStreams
	request, reply := kept(front.Requests), kept(front.Replies)
	switch b.method {
	case "StopContainer", "ExecSync":
		b.asked = time.Duration(number(m.Input, request, "timeout")) * time.Second
	case "ImageStatus":
		b.lacks = c.Ended && c.Code == codes.OK && !has(m.Output, reply, "image")
	case "ListPodSandbox", "ListContainers":
		b.all = len(request) == 0 || len(text(m.Input, request, "filter")) == 0
	}
	b.said = l.said(b.method, front)
	return b
}

// said returns what a runtime says of itself in an answer.
func (l *Look) said(method string, of *calls.Leg) string {
	m := l.schema.Method(of.Method)
	if m == nil || !of.Ended || of.Code != codes.OK {
		return ""
	}
	reply := kept(of.Replies)
	switch method {
	case "Version":
		return l.word(string(text(m.Output, reply, "runtime_name")) + " " + string(text(m.Output, reply, "runtime_version")))
	case "Status":
		return l.word(notReady(m.Output, reply))
	}
	return ""
}

// notReady returns the conditions in the answer of Status that are not met.
func notReady(md protoreflect.MessageDescriptor, reply []byte) string {
	var all []string
	status := md.Fields().ByName("status")
	if status == nil || status.Message() == nil {
		return ""
	}
	conditions := status.Message().Fields().ByName("conditions")
	if conditions == nil || conditions.Message() == nil {
		return ""
	}
	for f, err := range wire.Fields(text(md, reply, "status")) {
		if err != nil || f.Number != conditions.Number() {
			continue
		}
		one, met := conditions.Message(), f.Bytes()
		kind := string(text(one, met, "type"))
		if (kind == "RuntimeReady" || kind == "NetworkReady") && number(one, met, "status") == 0 { // runtimes have others, which kubelet ignores
			words := []string{kind + "=false", string(text(one, met, "reason")), string(text(one, met, "message"))}
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

func kept(m calls.Messages) []byte {
	if len(m.Kept) == 0 {
		return nil
	}
	return m.Kept[0].Payload
}

// field returns the last field of a message with a name.
func field(md protoreflect.MessageDescriptor, b []byte, name protoreflect.Name) (found wire.Field, ok bool) {
	fd := md.Fields().ByName(name)
	if fd == nil {
		return found, false
	}
	for f, err := range wire.Fields(b) {
		if err == nil && f.Number == fd.Number() {
			found, ok = f, true
		}
	}
	return found, ok
}

func number(md protoreflect.MessageDescriptor, b []byte, name protoreflect.Name) uint64 {
	f, _ := field(md, b, name)
	return f.Uint()
}

func text(md protoreflect.MessageDescriptor, b []byte, name protoreflect.Name) []byte {
	f, _ := field(md, b, name)
	return f.Bytes()
}

// has reports whether a message has a field, or is cut off and so may have it.
func has(md protoreflect.MessageDescriptor, b []byte, name protoreflect.Name) bool {
	_, ok := field(md, b, name)
	return ok || len(b) >= keepBytes
}

// lists remembers what long messages are about: on a node where nothing happens, all lists are alike.
type lists struct {
	calls.Namer
	seed  maphash.Seed
	known map[uint64]described // :: hash of a message → what it is about
}

type described struct {
	about calls.About
	items []calls.About
}

const (
	longMessage = 512
	maxKnown    = 256
)

// Message implements [calls.Namer].
func (n *lists) Message(md protoreflect.MessageDescriptor, payload []byte) (calls.About, []calls.About) {
	if len(payload) < longMessage {
		return n.Namer.Message(md, payload)
	}
	var h maphash.Hash
	h.SetSeed(n.seed)
	_, _ = h.WriteString(string(md.FullName())) // cannot fail
	_, _ = h.Write(payload)
	sum := h.Sum64()
	if d, ok := n.known[sum]; ok {
		return d.about, d.items
	}
	about, items := n.Namer.Message(md, payload)
	if len(n.known) >= maxKnown {
		clear(n.known)
	}
	n.known[sum] = described{about, items}
	return about, items
}

// kubelets are the names of processes that are a kubelet, or have one in them.
var kubelets = []string{"kubelet", "hyperkube", "k3s", "k3s-server", "rke2", "k0s", "kubelite", "microk8s"}

// kubelet reports whether kubelet made the call.
func (c *call) kubelet() bool { return slices.Contains(kubelets, c.from) }

// ok reports whether the call has ended without an error.
func (c *call) ok() bool { return c.ended && c.code == codes.OK }

// left reports whether the client ended the call, or its deadline passed, after a time.
func (c *call) gaveUp(after time.Duration) bool {
	return c.ended && c.took >= after && (c.code == codes.DeadlineExceeded || capture.EndedByClient(c.code, c.message))
}

// failed reports whether the call has ended with an error that its client did not cause.
func (c *call) failed() bool {
	return c.ended && c.code != codes.OK && !capture.EndedByClient(c.code, c.message)
}

func (c *call) end() time.Time { return c.began.Add(c.took) }

// pod returns NAMESPACE/NAME of the pod that the call is about, or "".
func (c *call) pod() string {
	if c.about.Pod == "" {
		return ""
	}
	return strings.TrimPrefix(c.about.Namespace+"/"+c.about.Pod, "/")
}

// object returns what the call is about, for people: a container, a pod, an image or an id.
func (c *call) object() string {
	if p := c.pod(); p != "" && c.about.Container != "" {
		return p + "/" + c.about.Container
	} else if p != "" {
		return p
	}
	if c.about.Image != "" {
		return c.about.Image
	}
	if len(c.about.IDs) > 0 {
		return calls.ShortID(c.about.IDs[0])
	}
	return ""
}

// id returns the main id that the call is about, or "".
func (c *call) id() string {
	if len(c.about.IDs) == 0 {
		return ""
	}
	return c.about.IDs[0]
}

// slowest returns the runtime that took most of the time of the call, "" if that was none.
func (c *call) slowest() string {
	if len(c.legs) == 0 {
		return ""
	}
	s := slices.MaxFunc(c.legs, func(a, b leg) int { return cmp.Compare(a.took, b.took) })
	if s.ended && s.took < c.took/2 {
		return ""
	}
	return s.backend
}
