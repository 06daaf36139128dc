package why

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
)

var repeated = Rule{
	Name:     "keeps-failing",
	Symptoms: []string{"createpodsandboxerror", "createcontainererror", "runcontainererror", anyFailure, "runpodsandbox from runtime service failed", "createcontainer in sandbox from runtime service failed", "startcontainer from runtime service failed", "failed to create pod sandbox", "failed to create sandbox for pod", "failed to start container", "failedcreatepodsandbox"},
	Means:    "kubelet repeats a call, and it fails each time in the same way.",
	Shown:    "RunPodSandbox, CreateContainer or StartContainer for one pod that fail at least three times with the same code; or any other call that no rule is about, and that fails for more than half a minute, or has been under way for more than a minute",
	Not:      "a deadline: the runtime has answered",
	Cure:     "the answer of the runtime says what it lacks; the pod starts by itself at the next try when that is mended",
	tried:    true,
	find:     func(v *view) []Finding { return slices.Concat(v.notStarting(), v.otherFailures(), v.otherWaits()) },
}

// notStarting finds parts of pods that a runtime fails to make again and again.
func (v *view) notStarting() []Finding {
	var found []Finding
	var tried [][]*call
	for _, method := range starting {
		tried = append(tried, groups(v.of((*call).kubelet, method), (*call).place)...)
	}
	for _, all := range tried {
		failed := filter(all, func(c *call) bool {
			known := isReserved(c.message) || c.code == codes.DeadlineExceeded || c.code == codes.Unavailable
			return c.failed() && !known && !misfits(c)
		})
		if len(failed) < 3 {
			continue
		}
		f, last := shown(failed), failed[len(failed)-1]
		f.About, f.Level = last.object(), Error
		said := last.message
		if c := causeOf(last.method, last.message); c != nil {
			said, f.Cure = c.text+": "+said, v.cureOf(c, last.message, on(last))
		}
		where := ""
		if len(last.legs) > 0 {
			where = " on " + on(last)
		} else if v.unasked(last) {
			f.Not = notAsked
		}
		say := func(does string) string {
			return fmt.Sprintf("%s %s not start%s: %s failed %s: %s", f.About, does, where, last.method, times(len(failed)), said)
		}
		f.Text, f.past = say("does"), say("did")
		v.endTries(&f, all, failed, "succeeded", succeeded(all))
		found = append(found, f)
	}
	return found
}

// byRules are methods whose failures other rules, or notStarting, are about.
var byRules = slices.Concat(starting, stopping, pulling, []string{"RemovePodSandbox", "RemoveContainer", "RemoveImage", "ExecSync", "GetContainerEvents"})

// A lack is what is missing while methods fail.
type lack struct {
	methods []string
	text    string
}

// lacks are all that are known.
var lacks = []lack{
	{plegCalls, "kubelet does not see what has changed"},
	{[]string{"ImageStatus", "ListImages"}, "pods that need an image wait"},
	{[]string{"UpdateContainerResources", "UpdatePodSandboxResources"}, "its CPU and memory stay as they were"},
	{[]string{"ReopenContainerLog"}, "its log is not rotated, and grows"},
	{[]string{"ContainerStats", "ListContainerStats", "PodSandboxStats", "ListPodSandboxStats", "ListPodSandboxMetrics", "ImageFsInfo"}, "kubectl top and evictions lack these numbers"},
	{[]string{"Exec", "Attach", "PortForward"}, "kubectl exec, attach and port-forward do not work"},
}

// leastFailing is how long a call must fail before why says so, if it does not keep a pod from starting.
const leastFailing = 30 * time.Second

// otherFailures finds calls of kubelet that fail again and again, and that nothing else is about. That something is not there, or
// that a runtime is older than the call, is no fault.
func (v *view) otherFailures() []Finding {
	var found []Finding
	asked := v.of(func(c *call) bool { return c.kubelet() && c.ended && !c.stream && !slices.Contains(byRules, c.method) })
	for _, all := range groups(asked, func(c *call) string { return c.method + " " + c.object() + " " + c.runtime() }) {
		var failed []*call
		var again *call
		for _, c := range all {
			switch {
			case c.ok():
				again = c
			case c.failed() && !slices.Contains([]codes.Code{codes.NotFound, codes.Unimplemented, codes.DeadlineExceeded, codes.Unavailable}, c.code) && !misfits(c):
				if again != nil {
					failed, again = nil, nil
				}
				failed = append(failed, c)
			}
		}
		if len(failed) < leastTries || failed[len(failed)-1].end().Sub(failed[0].began) < leastFailing {
			continue
		}
		f, last := shown(failed), failed[len(failed)-1]
		f.About = cmp.Or(last.object(), on(last))
		f.Cure = "read the runtime's answer, and its log at that time"
		if v.unasked(last) {
			f.Not = notAsked
		}
		of, lacking := "", ""
		if last.object() != "" {
			of = f.About + ": "
		}
		if i := slices.IndexFunc(lacks, func(l lack) bool { return slices.Contains(l.methods, last.method) }); i >= 0 {
			lacking = "; " + lacks[i].text
		}
		say := func(fails string) string {
			return fmt.Sprintf("%s%s %s on %s, %s from %s on: %s%s", of, last.method, fails, on(last), times(len(failed)), clock(f.Since), last.message, lacking)
		}
		f.Text, f.past = say("fails"), say("failed")
		v.endTries(&f, all, failed, "succeeded", again)
		found = append(found, f)
	}
	return found
}

// misfits reports whether a call failed because of a configuration.
func misfits(c *call) bool {
	of := causeOf(c.method, c.message)
	return of != nil && of.misfit
}

// otherWaits finds calls of kubelet that have been under way for long, and that no other rule is about.
func (v *view) otherWaits() []Finding {
	var found []Finding
	for _, c := range v.of(func(c *call) bool {
		removes := strings.HasPrefix(c.method, "Remove")
		return c.kubelet() && !c.ended && !c.stream && c.took >= longUnderWay && !v.inHang(c) && c.method != "CheckpointContainer" &&
			!slices.Contains(plegCalls, c.method) && (removes || !slices.Contains(byRules, c.method))
	}) {
		f := v.underWay(c)
		f.Cure = "see what the runtime waits for: its log, its goroutines (containerd and CRI-O: kill -USR1), and processes in state D (waiting for a disk)"
		found = append(found, f)
	}
	return found
}
