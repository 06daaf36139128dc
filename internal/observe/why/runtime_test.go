package why

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"google.golang.org/grpc/codes"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

func TestAnOutageThatBeganAnewHasItsOwnBeginning(t *testing.T) {
	v := &view{now: at(50), changes: []*capture.Change{
		{Time: at(1), Backend: "kata.io", What: capture.Slow, Was: capture.Up},
		{Time: at(8), Backend: "kata.io", What: capture.Gone, Was: capture.Slow},
		{Time: at(20), Backend: "kata.io", What: capture.Up, Was: capture.Gone},
		{Time: at(40), Backend: "kata.io", What: capture.Gone, Was: capture.Up, Why: "connection refused"},
	}}
	found := v.outages()
	require.Len(t, found, 1)
	f := found[0]
	assert.Equal(t, at(40), f.Since, "it was up before")
	assert.False(t, f.Over)
	assert.Equal(t, "kata.io is gone since 09:00:40.000; from 09:00:01.000 on it was gone twice and slow once: slow once, at 09:00:01.000; gone once, at 09:00:08.000; "+
		"gone once (connection refused), at 09:00:40.000; no call of clients failed because of it", f.Text)
	require.Len(t, f.Evidence, 4, "the recovery between them is told as well")
	assert.Contains(t, f.Evidence[2].Text, "is up")
	assert.Empty(t, f.Show, "view -status would show nothing")
	v.calls = []*call{{method: "Status", from: "kubelet", began: at(10), ended: true, code: codes.Unavailable}}
	assert.Equal(t, "-status 'Unavailable'", v.outages()[0].Show)
	v.changes = v.changes[:2]
	assert.Contains(t, v.outages()[0].Text, "kata.io is gone since 09:00:08.000; from 09:00:01.000 on it was")
	assert.Equal(t, at(8), v.outages()[0].Since, "what is now has one beginning")
}

// It gave the reason of the first of four outages, as if it were that of all, and left out of the evidence the line that the
// other reason stands in (issue 43, item 8).
func TestEachOutageHasItsOwnReason(t *testing.T) {
	var changes []*capture.Change
	for i, why := range []string{"connection refused", "has not answered Status within 10s", "connection refused", "connection refused", "connection refused"} {
		changes = append(changes, &capture.Change{Time: at(10 * i), Backend: "kata.io", What: capture.Gone, Was: capture.Up, Why: why},
			&capture.Change{Time: at(10*i + 5), Backend: "kata.io", What: capture.Up, Was: capture.Gone, Since: at(10 * i)})
	}
	v := &view{now: at(59), changes: changes}
	f := v.outages()[0]
	assert.Equal(t, "kata.io was gone 5 times, from 09:00:00.000 until 09:00:45.000: gone 4 times (connection refused), at 09:00:00.000, 09:00:20.000, 09:00:30.000, 09:00:40.000; "+
		"gone once (has not answered Status within 10s), at 09:00:10.000; no call of clients failed because of it", f.Text)
	assert.Contains(t, f.Evidence, Proof{at(10), changes[2].String()}, "the other reason is shown as well")
	v.changes = changes[4:8]
	assert.Equal(t, "kata.io was gone twice (connection refused), from 09:00:20.000 until 09:00:35.000: at 09:00:20.000, 09:00:30.000; no call of clients failed because of it", v.outages()[0].Text)
	v.changes = changes[4:7]
	assert.Contains(t, v.outages()[0].Text, "kata.io is gone since 09:00:30.000; from 09:00:20.000 on it was gone twice (connection refused): at 09:00:20.000, 09:00:30.000; no")
	v.changes = changes[:2]
	assert.Equal(t, "kata.io was gone once (connection refused), from 09:00:00.000 until 09:00:05.000; no call of clients failed because of it", v.outages()[0].Text)
	v.changes = changes[:1]
	assert.Equal(t, "kata.io is gone since 09:00:00.000 (connection refused); no call of clients failed because of it", v.outages()[0].Text)
}

// Two outages four minutes apart were one finding, which gave each the pods and the advice of the other (issue 42).
func TestOutagesThatAreFarApartAreToldByThemselves(t *testing.T) {
	const hangs = "accepts connections, and has answered nothing for 10s"
	v := &view{now: at(7200)}
	outage := func(second int, why string) {
		v.changes = append(v.changes, &capture.Change{Time: at(second), Backend: "kata.io", What: capture.Gone, Was: capture.Up, Why: why},
			&capture.Change{Time: at(second + 30), Backend: "kata.io", What: capture.Up, Was: capture.Gone, Since: at(second)})
	}
	fails := func(second int, pod string) {
		c := made("StopContainer", "kata.io", second, time.Millisecond, codes.Unavailable, "criproxy: backend kata.io is gone since 09:00:00: connection refused")
		c.about.Pod = pod
		v.calls = append(v.calls, c)
	}
	outage(0, "connection refused")
	outage(4*60, hangs)
	fails(5, "web")
	fails(4*60+5, "db")
	found := v.outages()
	require.Len(t, found, 2)
	assert.Equal(t, "kata.io was gone once (connection refused), from 09:00:00.000 until 09:00:30.000; of the calls of kubelet, 1 failed; those that failed were of shop/web", found[0].Text)
	assert.Equal(t, "kata.io was gone once ("+hangs+"), from 09:04:00.000 until 09:04:30.000; of the calls of kubelet, 1 failed; those that failed were of shop/db", found[1].Text)
	assert.NotContains(t, found[0].Cure, "T is stopped")
	assert.Contains(t, found[1].Cure, "T is stopped")
	assert.Len(t, found[0].Evidence, 2)
	outage(6*60, hangs)
	require.Len(t, v.outages(), 2, "it was up for 90s")
	assert.Contains(t, v.outages()[1].Text, "was gone twice")
	for i := range 7 {
		outage(10*60+300*i, hangs)
	}
	found = v.outages()
	require.Len(t, found, 1+maxStreak, "of many, the earliest are told together")
	assert.Contains(t, found[0].Text, "was gone 6 times")
	assert.Contains(t, found[1].Text, "was gone once")
}

// "is gone since" read like a process that had ended, and its time was 10s too late (a stranger).
func TestARuntimeThatHangsAnswersNothingSinceItsLastAnswer(t *testing.T) {
	v := &view{now: at(60), calls: []*call{made("Status", "primary", 1, time.Second, codes.OK, "")}, changes: []*capture.Change{
		{Time: at(12), Backend: "primary", What: capture.Gone, Was: capture.Up, Why: "accepts connections, and has answered nothing for 10s"},
	}}
	f := v.outages()[0]
	assert.Contains(t, f.Text, "primary answers nothing since 09:00:02.000, and counts as gone since 09:00:12.000 (accepts connections")
	assert.Equal(t, at(2), f.Since)
}

// The advice for the server of another API was "journalctl -u containerd" (issue 43, item 8).
func TestTheAdviceNamesTheBackendAndAUnitOnlyOfCRI(t *testing.T) {
	now := at(0)
	gone := &capture.Change{Time: now, Backend: "beta", What: capture.Gone, Was: capture.Up, Why: "connection refused"}
	look := func(method string) *Look {
		l := New(codec.NewSchema(), nil)
		l.Begin(&capture.FileHeader{Backends: []capture.HeaderBackend{{Name: "primary", Address: "/run/a.sock"}, {Name: "beta", Address: "/run/old.sock"}}})
		l.AddChange(&capture.Change{Time: now.Add(-time.Minute), What: capture.Reloaded, Why: "beta" + capture.NowAt + "/run/b.sock, before at /run/old.sock", Addresses: map[string]string{"beta": "/run/b.sock"}})
		l.AddChange(gone)
		for _, kind := range []capture.Kind{capture.Start, capture.End} {
			l.Add(&capture.Event{Kind: kind, Time: now.Add(-time.Second), Call: 1, Method: method})
		}
		return l
	}
	other := look("/library.v1.Library/Get").Report(Options{Now: now}).Findings
	require.Len(t, other, 2)
	assert.Equal(t, "read the log of beta, which is at /run/b.sock, at that time"+sinceNobody, other[0].Cure)
	ofCRI := look("/runtime.v1.RuntimeService/Version").Report(Options{Now: now}).Findings
	require.Len(t, ofCRI, 2)
	assert.Equal(t, "read the log of beta, which is at /run/b.sock, at that time (journalctl -u containerd, or crio)"+sinceNobody, ofCRI[0].Cure)
	for _, f := range other {
		assert.NotRegexp(t, "containerd|crio|crictl|pod|kubelet", f.Cure)
	}
}

// Of three kinds of calls that decide, evidence had the first two and the last one only (issue 43, item 8).
func TestTheEvidenceHasTheCallThatDecides(t *testing.T) {
	list := func(second int, took time.Duration) *call {
		return made("ListContainers", "primary", second, took, codes.OK, "")
	}
	worst, quick := list(20, 9*time.Second), list(50, time.Millisecond)
	v := &view{now: at(59), calls: []*call{list(0, 4*time.Second), list(10, 4*time.Second), worst, list(30, 4*time.Second), list(40, 4*time.Second), quick}}
	f := plegSlow(v)[0]
	require.Contains(t, f.Text, "it took up to 9s")
	assert.Contains(t, f.Evidence, worst.proof())
	assert.Contains(t, f.Evidence, quick.proof(), "it is over because of this one")
	assert.True(t, slices.IsSortedFunc(f.Evidence, func(a, b Proof) int { return a.Time.Compare(b.Time) }))

	status := list(1, time.Millisecond)
	status.method, status.said = "Status", "NetworkReady=false: NetworkPluginNotReady"
	v.calls = []*call{status}
	assert.Contains(t, v.notReady()[0].Evidence[0].Text, "OK: NetworkReady=false: NetworkPluginNotReady", "OK alone shows nothing")
}

// Of older times the recorder keeps only calls that failed or were slow. That others are not there says nothing.
func TestForgottenCallsAreNotTakenForSilence(t *testing.T) {
	slow := func(method string, from, to int) *call {
		return made(method, "primary", from, at(to).Sub(at(from)), codes.OK, "")
	}
	v := &view{now: at(59), calls: []*call{slow("ListPodSandbox", 0, 20), slow("Status", 1, 20), slow("ListContainers", 2, 20)}}
	require.Len(t, v.hangsOf(), 1, "the runtime answered nothing for 20s")
	v.hung = v.hangsOf()
	require.True(t, v.hangs()[0].Over)
	for _, c := range v.calls[:1] {
		c.code = codes.DeadlineExceeded // its client left in the end
	}
	v.calls = append(v.calls, slow("Version", 21, 22))
	v.hung = v.hangsOf()
	require.True(t, v.hangs()[0].Over, "it answered others then")
	v.changes = []*capture.Change{{Time: at(12), Backend: "primary", What: capture.Gone, Was: capture.Up, Why: "accepts connections, and has answered nothing for 10s"}}
	assert.Empty(t, v.hangs(), "its condition says so")
	assert.Contains(t, v.outages()[0].Cure, "T is stopped")
	assert.Contains(t, v.outages()[0].Text, "of the calls of kubelet, 1 failed")
	v.changes[0].Why = "connection refused"
	assert.Contains(t, v.outages()[0].Cure, "OOM killer")
	v.changes = append(v.changes, &capture.Change{Time: at(30), Backend: "primary", What: capture.Up, Was: capture.Gone},
		&capture.Change{Time: at(40), Backend: "primary", What: capture.Gone, Was: capture.Up, Why: "accepts connections, and has answered nothing for 10s"})
	assert.Contains(t, v.outages()[0].Cure, "T is stopped", "it hangs now")
	assert.NotContains(t, v.outages()[0].Cure, "OOM killer")
	v.changes = append(v.changes, &capture.Change{Time: at(50), Backend: "primary", What: capture.Up, Was: capture.Gone})
	assert.Contains(t, v.outages()[0].Cure, "T is stopped")
	assert.Contains(t, v.outages()[0].Cure, "OOM killer", "it was gone for each reason once")
	v.calls, v.changes, v.hung = v.calls[:3], nil, nil
	v.calls[0].code = codes.OK
	v.whole = at(30)
	assert.Empty(t, v.hangsOf(), "it may have answered others")
	probe := func(from int) *call {
		c := slow("ExecSync", from, from+2)
		c.asked, c.about.Pod, c.about.Container = time.Second, "web", "app"
		return c
	}
	v.calls = []*call{probe(1), probe(5)}
	assert.Contains(t, slowProbes(v)[0].Text, "time-out of 1s, twice on primary")
	v.whole = time.Time{}
	assert.Contains(t, slowProbes(v)[0].Text, "time-out of 1s, twice of 2 on primary")
}

// Beside an outage, why said that the runtime answered nothing: calls of criproxy itself, none of which had waited, lay 20s
// apart.
func TestAHangIsATimeInWhichCallsWaitedAndThatNoConditionTells(t *testing.T) {
	own := func(method string, second int, took time.Duration, code codes.Code) *call {
		c := made(method, "beta.io", second, took, code, "")
		c.from, c.own, c.about.Pod = "criproxy", true, ""
		return c
	}
	const quick = 200 * time.Microsecond
	v := &view{now: at(59), calls: []*call{own("Version", 0, quick, codes.DeadlineExceeded), own("Status", 20, quick, codes.OK), own("ListMetricDescriptors", 20, quick, codes.OK)}}
	assert.Empty(t, v.hangsOf(), "no call waited")
	gaveUp := 12 * time.Second
	v.calls = []*call{own("Version", 0, gaveUp, codes.DeadlineExceeded), own("Status", 1, gaveUp, codes.DeadlineExceeded), own("ListContainers", 2, gaveUp, codes.DeadlineExceeded), own("Status", 30, quick, codes.OK)}
	v.calls[0].about.Pod = "web"
	v.hung = v.hangsOf()
	require.Len(t, v.hangs(), 1)
	f := v.hangs()[0]
	assert.Equal(t, "beta.io answered nothing for 14s, from 09:00:00.000 on: 3 calls waited (Version, Status and ListContainers); it answers again since 09:00:30.000", f.Text)
	assert.Equal(t, "-method 'Version|Status|ListContainers' -own -backend beta.io", f.Show, "it selects all of them, and no others")
	for name, one := range map[string]struct {
		what     string
		from, to int
		told     bool
	}{
		"gone before it":     {capture.Gone, -1, 29, true},
		"slow within it":     {capture.Slow, 3, 5, true},
		"gone later":         {capture.Gone, 20, 25, false},
		"slow, and up again": {capture.Slow, -9, -5, false},
	} {
		v.changes = []*capture.Change{{Time: at(one.from), Backend: "beta.io", What: one.what, Was: capture.Up}, {Time: at(one.to), Backend: "beta.io", What: capture.Up, Was: one.what}}
		assert.Equal(t, one.told, len(v.hangs()) == 0, name)
	}
}

// A hang of half a minute had three parts of 10s, because a call that criproxy ended counted as an answer.
func TestACallThatCriproxyEndsIsNoAnswer(t *testing.T) {
	const takes = 9 * time.Second
	lost := func(method string, second int) *call {
		return made(method, "primary", second, takes, codes.Unavailable, "criproxy: backend primary accepts connections, and has answered nothing for 9s")
	}
	ping := made("Status", "primary", 2, takes, codes.Unavailable, "error reading from server: EOF")
	ping.own = true
	cachedOne := made("ListPodSandbox", "primary", 9, takes, codes.OK, "")
	cachedOne.cached, cachedOne.legs[0].code = []string{"primary"}, codes.Canceled
	left := made("ContainerStatus", "primary", 11, takes, codes.OK, "")
	left.legs[0].ended = false
	v := &view{now: at(59), calls: []*call{lost("ListContainers", 0), ping, cachedOne, left, lost("Version", 20), made("Status", "primary", 30, time.Millisecond, codes.OK, "")}}
	v.hung = v.hangsOf()
	require.Len(t, v.hung, 1)
	assert.Contains(t, v.hangs()[0].Text, "primary answered nothing for 29s, from 09:00:00.000 on: 5 calls waited")
	v.calls = append(v.calls[:2], made("StopContainer", "primary", 8, time.Second, codes.Unavailable, "ttrpc: closed"), v.calls[2])
	assert.Empty(t, v.hangsOf(), "the runtime's own Unavailable is an answer")
}

// Of a call that another runtime failed, or a plugin refused after its answer, why said that it failed because of this one.
func TestACallThatAnotherRuntimeFailedIsNoneOfThisOutage(t *testing.T) {
	const quick = time.Millisecond
	elsewhere := made("StopContainer", "primary", 3, quick, codes.Unavailable, "ttrpc: closed")
	refused := made("StopContainer", "", 4, quick, codes.Unavailable, "criproxy: backend primary is gone since 09:00:01: connection refused")
	refused.legs = nil
	list := made("ListContainers", "kata.io", 5, quick, codes.Internal, "no")
	list.legs[0].code = codes.Canceled
	list.legs = append(list.legs, leg{backend: "primary", ended: true, code: codes.Internal})
	v := &view{now: at(9), calls: []*call{elsewhere, refused, list}, changes: []*capture.Change{{Time: at(1), Backend: "kata.io", What: capture.Slow, Was: capture.Up}}}
	assert.Contains(t, v.outages()[0].Text, "; no call of kubelet failed because of it")
	v.calls = append(v.calls, made("StopContainer", "kata.io", 6, quick, codes.Unavailable, "ttrpc: closed"))
	assert.Contains(t, v.outages()[0].Text, "; of the calls of kubelet, 1 failed")
}

// While a runtime is slow it goes on to refuse what it cannot do: on a node whose runtime was slow because of a stopped shim, why
// also counted a sandbox whose name was reserved, and a container that was gone.
func TestWhatASlowRuntimeAnswersFailsForAnotherReason(t *testing.T) {
	const quick = time.Millisecond
	v := &view{now: at(9), changes: []*capture.Change{{Time: at(1), Backend: "primary", What: capture.Slow, Was: capture.Up}}, calls: []*call{
		made("RunPodSandbox", "primary", 2, quick, codes.Unknown, "failed to reserve sandbox name"), made("ContainerStatus", "primary", 3, quick, codes.NotFound, "not found"),
	}}
	assert.Contains(t, v.outages()[0].Text, "; no call of kubelet failed because of it")
	v.calls = append(v.calls, made("ListContainers", "primary", 4, 2*time.Second, codes.DeadlineExceeded, "context deadline exceeded"))
	assert.Contains(t, v.outages()[0].Text, "; of the calls of kubelet, 1 failed")
	v.changes = append(v.changes, &capture.Change{Time: at(7), Backend: "primary", What: capture.Up, Was: capture.Slow})
	v.now, v.calls = at(300), append(v.calls, made("RunPodSandbox", "primary", 5, 4*time.Minute, codes.DeadlineExceeded, "context deadline exceeded"))
	assert.Contains(t, v.outages()[0].Text, "; of the calls of kubelet, 1 failed", "the runtime has been up for long when kubelet gives up")
}

// A stopped shim made its runtime slow, because kubelet's calls for statistics waited for it: the cure was to dump the runtime's
// goroutines.
func TestARuntimeThatASilentShimMakesSlowIsNotToBlame(t *testing.T) {
	slow := &capture.Change{Time: at(10), Backend: "primary", What: capture.Slow, Was: capture.Up, Why: "has not answered /runtime.v1.RuntimeService/ListContainerStats within 2s"}
	probe := made("ExecSync", "primary", 5, 2*time.Second, codes.DeadlineExceeded, "failed to exec in container: failed to load task: context deadline exceeded")
	v := &view{now: at(59), changes: []*capture.Change{slow}, calls: []*call{probe}}
	f := v.outages()[0]
	assert.Equal(t, "calls for statistics waited for the shim of shop/web, which did not answer", f.Cause)
	assert.Equal(t, wakeShim, f.Cure)
	probe.about.IDs = []string{"kata.io__46808230ea99c13d", "kata.io__58ceba930021163daaa3"}
	assert.Contains(t, runtimeChanged.complete(v.outages()[0]).Cure, "with the sandbox's id (58ceba930021) in its arguments")
	assert.Equal(t, "-method 'ExecSync' -follow-pod shop/web -backend primary", f.Show)
	v.calls = append(v.calls, made("ListContainerStats", "primary", 10, 30*time.Second, codes.DeadlineExceeded, tooLate), made("ListContainers", "primary", 11, time.Millisecond, codes.OK, ""), made("Version", "primary", 20, 2*time.Millisecond, codes.OK, ""))
	v.calls[1].own, v.calls[1].about.Pod = true, ""
	v.calls = append(v.calls, made("ExecSync", "primary", 15, 2*time.Second, probe.code, probe.message), made("ExecSync", "primary", 57, 2*time.Second, codes.OK, ""))
	v.calls[5].ended, v.calls[5].legs[0].ended = false, false
	f = v.outages()[0]
	assert.Contains(t, f.Text, "within 2s); no call of kubelet failed because of it; only calls for statistics hung: 2 others took at most 2ms", "probes wait for the shim")
	assert.Equal(t, "-method 'ExecSync|ListContainerStats' -own -backend primary", f.Show, "criproxy asked for the statistics")
	v.calls[3].took = time.Second
	assert.NotContains(t, v.outages()[0].Text, "only calls for statistics")

	up := &capture.Change{Time: at(12), Backend: "primary", What: capture.Up, Was: capture.Slow}
	again := &capture.Change{Time: at(40), Backend: "primary", What: capture.Slow, Was: capture.Up, Why: slow.Why}
	twice := &view{now: at(59), changes: []*capture.Change{slow, up, again}, calls: []*call{probe}}
	assert.Empty(t, twice.outages()[0].Cause, "the shim answered when it was slow again (Kubernetes' node suite)")

	of := Finding{Level: Warning, About: "shop/web", Cure: wakeShim}
	both := []Finding{f, {About: "db"}, of, {About: "dns"}}
	consequences(both)
	assert.Equal(t, []string{"db", "shop/web", "primary", "dns"}, []string{both[0].About, both[1].About, both[2].About, both[3].About})
	assert.Equal(t, "see to the shim, as said of shop/web: nothing is wrong with primary itself", both[2].Cure)
	both = []Finding{f, {About: "shop/web", Over: true, Cure: wakeShim}}
	consequences(both)
	assert.Equal(t, wakeShim, both[0].Cure, "the finding about the shim says that it is over")
	for name, change := range map[string]func(){
		"other calls took long as well": func() {
			v.changes = append(v.changes, &capture.Change{Time: at(20), Backend: "primary", What: capture.Gone, Was: capture.Slow, Why: "cannot be reached"})
		},
		"it was another runtime's shim": func() { v.calls[0] = made("ExecSync", "kata.io", 5, 2*time.Second, probe.code, probe.message) },
		"the command took long":         func() { v.calls[0] = made("ExecSync", "primary", 5, 2*time.Second, probe.code, "timeout 1s exceeded") },
		"it was long before":            func() { v.changes[0].Time = at(40) },
	} {
		v.changes, v.calls, slow.Time = []*capture.Change{slow}, []*call{probe}, at(10)
		change()
		assert.Empty(t, v.outages()[0].Cause, name)
	}
}

// Of pods that began between two outages, why said that kubelet had made them anew, and its command selected the calls of other
// runtimes.
func TestWhatHappenedBetweenTwoOutagesIsNotOfThem(t *testing.T) {
	v := &view{now: at(50), changes: []*capture.Change{
		{Time: at(1), Backend: "kata.io", What: capture.Gone, Was: capture.Up},
		{Time: at(8), Backend: "kata.io", What: capture.Up, Was: capture.Gone},
		{Time: at(40), Backend: "kata.io", What: capture.Slow, Was: capture.Up},
	}}
	const quick = time.Millisecond
	v.calls = []*call{made("RunPodSandbox", "kata.io", 20, quick, codes.OK, ""), made("StopContainer", "kata.io", 21, quick, codes.Internal, "no")}
	assert.Contains(t, v.outages()[0].Text, "; no call of kubelet failed because of it")
	refused := made("StopContainer", "", 5, quick, codes.Unavailable, "criproxy: backend kata.io is gone since 09:00:01: connection refused")
	refused.legs = nil
	v.calls = append(v.calls, refused, made("RunPodSandbox", "kata.io", 41, quick, codes.OK, ""), made("ListContainers", "kata.io", 42, 2*time.Second, codes.DeadlineExceeded, ""))
	f := v.outages()[0]
	assert.Contains(t, f.Text, "; of the calls of kubelet, 2 failed, 1 made a new sandbox")
	assert.Equal(t, "-status 'Unavailable|DeadlineExceeded' -backend kata.io", f.Show)
}

// why said that no call failed, while one had waited for 18s.
func TestACallThatWaitsInAnOutageCounts(t *testing.T) {
	underWay := func(method string, second int) *call {
		c := made(method, "primary", second, at(48).Sub(at(second)), codes.OK, "")
		c.ended, c.legs[0].ended = false, false
		return c
	}
	events, answered := underWay("GetContainerEvents", 20), underWay("StartContainer", 30)
	events.stream, answered.legs[0].ended = true, true
	v := &view{now: at(48), calls: []*call{events, answered, underWay("ListContainers", 48)}, changes: []*capture.Change{
		{Time: at(40), Backend: "primary", What: capture.Gone, Was: capture.Up, Why: "accepts connections, and has answered nothing for 10s"},
	}}
	assert.Contains(t, v.outages()[0].Text, "; no call of kubelet failed because of it", "a stream, a call that another part of criproxy has, and one that has just begun")
	v.calls = append(v.calls, underWay("ListContainers", 30))
	assert.Contains(t, v.outages()[0].Text, "; of the calls of kubelet, 1 is waiting")
	v.calls = append(v.calls, underWay("StopContainer", 41))
	assert.Contains(t, v.outages()[0].Text, "; of the calls of kubelet, 2 are waiting")
	v.changes = append(v.changes, &capture.Change{Time: at(47), Backend: "primary", What: capture.Up, Was: capture.Gone})
	assert.Contains(t, v.outages()[0].Text, "; no call of kubelet failed because of it", "it takes long, and waits for no outage")
}

// A page inferred bands from a recording without conditions of which why said that nothing was wrong (issue 27).
func TestAnswersFromTheCacheShowAnOutage(t *testing.T) {
	list := func(second int, fromCache ...string) *call {
		c := &call{method: "ListContainers", from: "crictl", began: at(second), took: time.Second, ended: true, cached: fromCache, legs: []leg{{backend: "primary", ended: true}}}
		if fromCache == nil {
			c.legs = append(c.legs, leg{backend: "kata.io", ended: true})
		}
		return c
	}
	v := &view{now: at(59), calls: []*call{list(1), list(2, "kata.io"), list(8, "kata.io")}}
	v.conditions.Begin(&capture.FileHeader{})
	f := v.fromCache()[0]
	assert.Contains(t, f.Text, "kata.io was slow or gone: the cache answered for it in 2 calls, from 09:00:02.000 until 09:00:09.000")
	assert.False(t, f.Over)
	v.calls = append(v.calls, list(10))
	assert.True(t, v.fromCache()[0].Over)
	v.conditions.Change(&capture.Change{Backend: "kata.io", What: capture.Up})
	assert.Empty(t, v.fromCache())
}

// Of five outages why left out the end of the first one, in a line of its own, and of seven it showed three times that the
// runtime is up, as a process says that begins.
func TestTheEvidenceHasEachOutageWithItsEnd(t *testing.T) {
	began := at(0)
	flapping := func(outages int) *view {
		v := &view{now: began.Add(time.Hour)}
		add := func(what, was string) {
			v.changes = append(v.changes, &capture.Change{Time: began.Add(time.Duration(len(v.changes)) * time.Second), Backend: "kata.io", What: what, Was: was})
		}
		add(capture.Up, "")
		for range outages {
			add(capture.Gone, capture.Up)
			add(capture.Up, capture.Gone)
			add(capture.Up, "") // criproxy was started again
		}
		return v
	}
	for outages, want := range map[int]string{
		1: "gone up", 5: "gone up gone up gone up gone up gone up", 6: "gone up left out here: 2 changes gone up gone up gone up gone up",
		9: "gone up left out here: 8 changes gone up gone up gone up gone up",
	} {
		var shown []string
		for _, p := range flapping(outages).outages()[0].Evidence {
			shown = append(shown, strings.TrimPrefix(p.Text, "kata.io is "))
		}
		assert.Equal(t, want, strings.Join(shown, " "))
	}
	long := &view{now: began.Add(time.Hour)}
	for i := range 20 {
		long.changes = append(long.changes, &capture.Change{Time: began.Add(time.Duration(i) * time.Second), Backend: "kata.io", What: []string{capture.Slow, capture.Gone}[i%2]})
	}
	shown := long.outages()[0].Evidence
	require.Len(t, shown, 7, "one outage")
	assert.Equal(t, "left out here: 14 changes", shown[3].Text)
	assert.Empty(t, (&view{changes: flapping(0).changes}).outages(), "it was never gone")
}

// A page that had loaded few calls said of an outage before them, as certain, that no call failed because of it.
func TestNobodyKnowsOfCallsThatWereNotLookedAt(t *testing.T) {
	gone := &capture.Change{Time: at(10), Backend: "kata.io", What: capture.Gone, Was: capture.Up, PID: 1}
	up := &capture.Change{Time: at(30), Backend: "kata.io", What: capture.Up, Was: capture.Gone, Since: at(10), PID: 1}
	calls := func(l *Look, second int) *Look {
		for _, kind := range []capture.Kind{capture.Start, capture.End} {
			l.Add(&capture.Event{Kind: kind, Time: at(second), Mono: time.Duration(second) * time.Second, Call: 1, Method: "/runtime.v1.RuntimeService/Version", Code: codes.Unavailable})
		}
		return l
	}
	look := func(changes ...*capture.Change) *Look {
		l := New(codec.NewSchema(), nil)
		for _, c := range changes {
			l.AddChange(c)
		}
		return l
	}
	text := func(l *Look, since int) string {
		return l.Report(Options{Now: at(59), Since: at(since)}).Findings[0].Text
	}
	const none, some, lacks = "; no call of clients failed because of it", "; of the calls of clients, 1 failed", "; not all calls before 09:00:"
	assert.Contains(t, text(calls(look(gone, up), 40), 0), "until 09:00:30.000"+lacks+"40.000 were looked at")
	assert.Contains(t, text(calls(look(gone, up), 20), 0), some+lacks+"20.000 were looked at")
	assert.Contains(t, text(calls(look(gone, up), 5), 25), lacks+"25.000 were looked at", "why -since")
	assert.Contains(t, text(look(gone, up), 0), lacks+"59.000 were looked at", "of no call")
	assert.Regexp(t, none+"$", text(calls(look(gone, up), 5), 0))
	l := look()
	l.Add(&capture.Event{Kind: capture.Changed, Time: gone.Time, Mono: 10 * time.Second, Change: gone})
	l.Add(&capture.Event{Kind: capture.Changed, Time: up.Time, Mono: 30 * time.Second, Change: up})
	assert.Regexp(t, none+"$", text(calls(l, 40), 0), "the recording begins with the change")
	l = look()
	l.Add(&capture.Event{Kind: capture.Changed, Time: gone.Time, Mono: 20 * time.Second, Change: gone})
	assert.Contains(t, text(calls(l, 40), 0), lacks+"20.000 were looked at", "an earlier process noted the change")
}

// The header of a recording says less of a change than its event, and why showed that.
func TestAChangeHasOneText(t *testing.T) {
	at := at(0)
	pods := 2
	gone := &capture.Change{Time: at, Backend: "kata.io", What: capture.Gone, Was: capture.Slow, Since: at.Add(-time.Second), Why: "connection refused", Pods: &pods, Containers: &pods, PID: 7}
	l := New(codec.NewSchema(), nil)
	l.Begin(&capture.FileHeader{Backends: []capture.HeaderBackend{{Name: "kata.io", State: capture.Gone, Since: at, Why: gone.Why, Pods: &pods}}})
	l.AddChange(gone)
	assert.Equal(t, []Proof{{at, gone.String()}}, l.Report(Options{Now: at}).Findings[0].Evidence)
}

func TestTheEndOfAnOutageIsTheFirstOne(t *testing.T) {
	v := &view{now: at(59), changes: []*capture.Change{
		{Time: at(1), Backend: "kata.io", What: capture.Gone, Was: capture.Up, Why: "answers Version with FailedPrecondition: criproxy: Version came back to the criproxy that passed it on, through y"},
		{Time: at(8), Backend: "kata.io", What: capture.Up, Was: capture.Gone},
		{Time: at(30), Backend: "kata.io", What: capture.Up}, // of a criproxy that was restarted
	}}
	f := v.outages()[0]
	assert.Contains(t, f.Text, "until 09:00:08.000")
	assert.Contains(t, f.Cure, "criproxy check", "it is not the runtime whose log is to be read")
}

// why looks at the last hour, and a runtime may be gone for a day. The outage is older than all calls.
func TestAnOutageMayBeOlderThanTheTimeLookedAt(t *testing.T) {
	now := at(0)
	day := now.Add(-24 * time.Hour)
	gone := &capture.Change{Time: day, Backend: "kata.io", What: capture.Gone, Was: capture.Up, Why: "connection refused"}
	up := &capture.Change{Time: day.Add(time.Hour), Backend: "kata.io", What: capture.Up, Was: capture.Gone, Since: day}
	for name, one := range map[string]struct {
		changes []*capture.Change
		header  capture.FileHeader
		found   bool
	}{
		"a change":                 {changes: []*capture.Change{gone}, found: true},
		"a change, and it is over": {changes: []*capture.Change{gone, up}},
		"only the file's header":   {header: capture.FileHeader{Backends: []capture.HeaderBackend{{Name: "kata.io", State: capture.Gone, Since: day}}}, found: true},
		"both": {changes: []*capture.Change{gone}, found: true,
			header: capture.FileHeader{Backends: []capture.HeaderBackend{{Name: "kata.io", State: capture.Gone, Since: day}}}},
		"a header that says that it is up": {header: capture.FileHeader{Backends: []capture.HeaderBackend{{Name: "kata.io", State: capture.Up, Since: day}}}},
	} {
		t.Run(name, func(t *testing.T) {
			l := New(codec.NewSchema(), nil) // no call needs a name
			l.Begin(&one.header)
			for _, c := range one.changes {
				l.AddChange(c)
			}
			report := func() []Finding { return l.Report(Options{Now: now, Since: now.Add(-time.Hour)}).Findings }
			if !one.found {
				assert.Empty(t, report())
				return
			}
			require.Len(t, report(), 1)
			assert.Equal(t, Error, report()[0].Level)
			assert.Equal(t, day, report()[0].Since)
			l.Forget(now.Add(-10 * time.Minute))
			assert.Len(t, report(), 1, "the alert lasts as long as the outage")
		})
	}
}

// Recordings of other programs, and of parts of a run, lack the changes of conditions.
func TestCallsThatReachNoRuntimeNeedNoCondition(t *testing.T) {
	away := func(second int, message string) *call {
		return &call{method: "ListPodSandbox", from: "kubelet", pid: 1, began: at(second), took: time.Millisecond, ended: true, code: codes.Unavailable, message: message}
	}
	refused := "criproxy: backend primary cannot be reached at /run/a.sock: connect: connection refused"
	gone := "criproxy: backend primary is gone since 09:00:01: cannot be reached at /run/a.sock: connect: connection refused"
	v := &view{now: at(59), calls: []*call{away(1, refused), away(2, gone), away(3, gone)}}
	require.Len(t, v.unreached(), 1)
	assert.Equal(t, Error, v.unreached()[0].Level)
	assert.Equal(t, "primary was not reached by 3 calls of kubelet from 09:00:01.000 on; the last answer was: "+gone, v.unreached()[0].Text)

	v.calls = append(v.calls, &call{method: "Status", from: "kubelet", pid: 1, began: at(9), ended: true, legs: []leg{{backend: "primary", ended: true}}})
	assert.True(t, v.unreached()[0].Over)
	v.changes = []*capture.Change{{Time: at(1), Backend: "primary", What: capture.Gone}}
	assert.Empty(t, v.unreached(), "the change says it better")
	v.changes, v.calls = nil, v.calls[:2]
	assert.Empty(t, v.unreached(), "two calls are not enough")
	v.calls = []*call{away(1, "the runtime says so"), away(2, "the runtime says so"), away(3, "the runtime says so")}
	assert.Empty(t, v.unreached(), "it was reached")
}

// A runtime that had been upgraded before the oldest recorded call was no news, and one that was restarted never (issue 42).
func TestARuntimeThatWasRestartedOrReplacedIsSaidOnce(t *testing.T) {
	for what, why := range map[string]string{
		capture.Replaced:  "it is containerd v2.4.2 now, before it was containerd v1.7.28",
		capture.Restarted: "process 812 serves it now, process 655 did before (containerd v1.7.28)",
	} {
		v := &view{now: at(59), changes: []*capture.Change{{Time: at(40), Backend: "primary", What: what, Why: why}}}
		found := runtimeChanged.find(v)
		require.Len(t, found, 1)
		assert.Equal(t, "primary was "+what+": "+why+"; criproxy found that at 09:00:40.000", found[0].Text)
		assert.False(t, found[0].Lasts())
	}
}
