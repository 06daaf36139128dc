package why

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

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
	stream  bool // it may go on for ever
	legs    []leg
	cached  []string // the runtimes for which a cache answered

	asked time.Duration // the field timeout of a StopContainer or ExecSync
	said  string        // of Version: the version; of Status: why the network or the runtime is not ready; of PodSandboxStatus: why it is not ready
	lacks bool          // of ImageStatus: there is no such image
	has   string        // of Status: the handlers for RuntimeClasses, in order; empty if it does not say
}

// leg is the part of a call that a runtime had.
type leg struct {
	backend string
	after   time.Duration // it began so long after the call
	took    time.Duration
	ended   bool
	code    codes.Code
	said    string // as in call,
	has     string // likewise
}

// kubelet reports whether kubelet made the call.
func (c *call) kubelet() bool { return slices.Contains(kubelets, c.from) }

// ok reports whether the call has ended without an error.
func (c *call) ok() bool { return c.ended && c.code == codes.OK }

// gaveUp reports whether the client ended the call, or its deadline passed.
func (c *call) gaveUp() bool {
	return c.ended && (c.code == codes.DeadlineExceeded || capture.EndedByClient(c.code, c.message))
}

// expired reports whether the client gave the call up because it took too long. kubelet also ends calls when it stops, and when
// their pod is deleted.
func (c *call) expired() bool {
	return c.ended && c.took >= abandoned && c.code == codes.DeadlineExceeded
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

// object returns what the call is about, for people: a container, a pod or an image, or an id if it has no name.
func (c *call) object() string {
	switch p := c.pod(); {
	case p != "" && c.about.Container != "":
		return p + "/" + c.about.Container
	case p == "" && c.about.Container != "":
		return strings.TrimSpace(c.about.Container + " " + c.id()) // several pods have a container of this name
	default:
		return cmp.Or(p, c.about.Image, c.id())
	}
}

// place returns the part of a pod that the call is about, with its runtime; "" if the call names no pod.
func (c *call) place() string {
	if c.pod() == "" {
		return ""
	}
	return c.object() + " on " + c.runtime()
}

// id returns the main id that the call is about, or "".
func (c *call) id() string {
	if len(c.about.IDs) == 0 {
		return ""
	}
	return c.about.IDs[0]
}

// sandbox returns the beginning of the id of the sandbox that the call is about, as processes of the node have it, or "".
func (c *call) sandbox() string {
	ids := c.about.IDs
	if !strings.HasSuffix(c.method, "PodSandbox") { // the first one is the container's
		ids = ids[min(1, len(ids)):]
	}
	if len(ids) == 0 {
		return ""
	}
	id := ids[0][strings.LastIndexByte(ids[0], '_')+1:]
	return id[:min(len(id), 12)]
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

// runtime returns the runtime that a call went to; of several, one that failed, or the one that took most of the time. It
// returns "" if there is none.
func (c *call) runtime() string {
	if len(c.legs) == 1 {
		return c.legs[0].backend
	}
	if i := slices.IndexFunc(c.legs, func(one leg) bool { return one.ended && one.code != codes.OK && one.code != codes.Canceled }); i >= 0 {
		return c.legs[i].backend // criproxy cancels the others
	}
	return c.slowest()
}

// answered reports whether a call succeeded, and a runtime was among those that answered it. "" stands for any.
func (c *call) answered(runtime string) bool {
	return c.ok() && (runtime == "" || slices.ContainsFunc(c.legs, func(one leg) bool { return one.backend == runtime && one.ended && one.code == codes.OK }))
}

// replied reports whether the one runtime that a call went to has answered it. It has not if the client gave up, or if criproxy
// ended the call because it lost the runtime or had an answer from the cache.
func (c *call) replied() bool {
	one, lost := c.legs[0], c.code == codes.Unavailable && (c.own || backend.NameIn(c.message) != "")
	return one.ended && one.code != codes.Canceled && !c.gaveUp() && !lost
}

// failedBy reports whether a call failed because a runtime did not answer it, and not because of another one. What a runtime
// answers has another reason.
func (c *call) failedBy(runtime string) bool {
	if !c.failed() || c.ofShim() {
		return false
	}
	if name := backend.NameIn(c.message); name != "" {
		return name == runtime
	}
	return c.code == codes.DeadlineExceeded && c.runtime() == runtime || c.code == codes.Unavailable && (len(c.legs) == 0 || c.runtime() == runtime)
}

// ofShim reports whether a call failed because a runtime answered that a shim did not answer.
func (c *call) ofShim() bool {
	if !c.failed() || c.message == tooLate { // the runtime has not answered
		return false
	}
	of := causeOf(c.method, c.message)
	return of != nil && of.text == noAnswer
}

// meant reports whether a call was meant for a runtime, as flags of criproxy view select it.
func (c *call) meant(runtime string) bool {
	if len(c.legs) == 0 && len(c.cached) == 0 {
		return backend.NameIn(c.message) == runtime
	}
	return slices.Contains(c.cached, runtime) || slices.ContainsFunc(c.legs, func(one leg) bool { return one.backend == runtime })
}

// saidBy returns what a runtime says of itself in the answer to a call.
func (c *call) saidBy(runtime string) string {
	for i, one := range c.legs {
		if one.backend == runtime && (i > 0 || one.said != "") {
			return one.said
		}
	}
	return c.said // recordings have a message once, and the answer to the client is the primary's
}

// actor returns who did what the call asks for, for the beginning of a sentence: the runtime, or else its client.
func (c *call) actor() string {
	if len(c.legs) == 0 {
		return c.from
	}
	return on(c)
}

// on returns the runtimes that a call went to, for people.
func on(c *call) string {
	if s := c.slowest(); s != "" {
		return s
	}
	var all []string
	for _, one := range c.legs {
		all = append(all, one.backend)
	}
	if len(all) == 0 {
		return "no runtime"
	}
	return strings.Join(all, ", ")
}

// target returns what a call is about: the pod, or else the image or the id.
func (c *call) target() string {
	if p := c.pod(); p != "" && c.method != "RemoveContainer" {
		return p
	}
	return c.object()
}

// methodsOf returns the methods of calls, in the order in which they first appear.
func methodsOf(all []*call) (names []string) {
	for _, c := range all {
		if !slices.Contains(names, c.method) {
			names = append(names, c.method)
		}
	}
	return names
}

// runtimesOf returns the runtimes that calls went to, by name.
func runtimesOf(all []*call) []string {
	names := map[string]bool{}
	for _, c := range all {
		for _, one := range c.legs {
			names[one.backend] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// podsOf returns the pods that calls are about, by name.
func podsOf(all []*call) []string {
	pods := map[string]bool{}
	for _, c := range all {
		if p := c.pod(); p != "" {
			pods[p] = true
		}
	}
	return slices.Sorted(maps.Keys(pods))
}

// few returns the first ones of names, and how many more there are.
func few(names []string) []string {
	if more := len(names) - many; more > 1 {
		return append(slices.Clone(names[:many]), fmt.Sprintf("%d more", more))
	}
	return names
}

// and lists names in a sentence.
func and(names []string) string {
	if n := len(names) - 1; n > 1 {
		return strings.Join(names[:n], ", ") + " and " + names[n]
	}
	return strings.Join(names, " and ")
}

func filter[T any](all []T, ok func(T) bool) []T {
	var some []T
	for _, one := range all {
		if ok(one) {
			some = append(some, one)
		}
	}
	return some
}
