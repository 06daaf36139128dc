package inventory_test

import (
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/inventory"
	"github.com/criproxy/criproxy/internal/testing/prototest"
	"github.com/criproxy/criproxy/internal/testing/untested"
)

// runtime is the inventory of a runtime. Its method play takes a script, a line after the other:
//
//	pods p1 READY, p2 READY                          the answer to a list of all pods, which is asked for now
//	containers c1/p1 RUNNING                         of all containers
//	images i1=app:1                                  of all images
//	broken                                           an answer to a list of all containers that is malformed
//	ask old                                          a request that is answered later:
//	containers@old c1/p1 RUNNING                     its answer
//	part@old c1/p1 RUNNING                           the same, if it was a request for the containers of p1
//	status@old c1=text                               the same, if it was one for a status
//	StopContainer container_id: "c1"                 a call that has succeeded
//	RunPodSandbox config {} -> pod_sandbox_id: "p3"  one with a reply
//	!StopContainer container_id: "c1"                a call that has failed
//	restart                                          the next process reads what this one has saved
//	? containers c1/p1 EXITED                        the list from the cache
//	? status c1=text                                 the status from the cache, "none" if there is none, "listed" for an image
//	? waits containers                               the lists that wait for the runtime
//	? due c1 c2                                      the containers whose status the runtime must be asked for
//	? lacks true                                     whether the latest part lacked an item
//	? held c1 c2                                     the containers that were listed, and are no more
//	? complete false                                 whether all containers are known
type runtime struct {
	t     *testing.T
	inv   *inventory.Inventory
	asked map[string]uint64
	lacks bool
}

var cri = sync.OnceValues(func() (director.Config, error) { return criadapter.Config(criadapter.Options{}) })

var plan = sync.OnceValues(func() (*inventory.Plan, error) {
	cfg, err := cri()
	if err != nil {
		return nil, err
	}
	return inventory.Compile(cfg.Profile.Known, cfg.Schema, "runtime.v1", nil)
})

func newRuntime(t *testing.T) *runtime {
	r := &runtime{t: t, inv: inventory.New(), asked: map[string]uint64{}}
	require.NoError(t, r.inv.Use(r.plan()))
	return r
}

func (r *runtime) plan() *inventory.Plan {
	p, err := plan()
	require.NoError(r.t, err)
	return p
}

func (r *runtime) list(name string) *inventory.ListPlan {
	return r.plan().Lists[slices.Index([]string{"pods", "containers", "images"}, name)]
}

func (r *runtime) listing(name string) *inventory.Listing { return r.inv.List(r.list(name)) }

// of returns the list whose items have an id.
func of(id string) string {
	return map[byte]string{'p': "pods", 'c': "containers", 'i': "images"}[id[0]]
}

// reply is the reply to a list: of pods "p1 READY, p2 NOTREADY", of containers "c1/p1 RUNNING", of images "i1=app:1".
func (r *runtime) reply(list, text string) []byte {
	var pods runtimeapi.ListPodSandboxResponse
	var containers runtimeapi.ListContainersResponse
	var images runtimeapi.ListImagesResponse
	for _, item := range strings.FieldsFunc(text, func(c rune) bool { return c == ',' }) {
		id, state, _ := strings.Cut(strings.TrimSpace(item), " ")
		switch list {
		case "pods":
			pods.Items = append(pods.Items, &runtimeapi.PodSandbox{Id: id, State: runtimeapi.PodSandboxState(runtimeapi.PodSandboxState_value["SANDBOX_"+state])})
		case "containers":
			id, pod, _ := strings.Cut(id, "/")
			containers.Containers = append(containers.Containers, &runtimeapi.Container{Id: id, PodSandboxId: pod, State: runtimeapi.ContainerState(runtimeapi.ContainerState_value["CONTAINER_"+state])})
		default:
			id, tag, _ := strings.Cut(id, "=")
			images.Images = append(images.Images, &runtimeapi.Image{Id: id, RepoTags: []string{tag}})
		}
	}
	b, err := proto.Marshal(map[string]proto.Message{"pods": &pods, "containers": &containers, "images": &images}[list])
	require.NoError(r.t, err)
	return b
}

// shows is the reverse of reply for what a list shows.
func (r *runtime) shows(view *inventory.View, list string) string {
	answer, err := view.Answer(r.list(list), nil)
	require.NoError(r.t, err)
	var all []string
	var pods runtimeapi.ListPodSandboxResponse
	var containers runtimeapi.ListContainersResponse
	var images runtimeapi.ListImagesResponse
	require.NoError(r.t, proto.Unmarshal(answer, map[string]proto.Message{"pods": &pods, "containers": &containers, "images": &images}[list]))
	for _, p := range pods.Items {
		all = append(all, p.Id+" "+strings.TrimPrefix(p.State.String(), "SANDBOX_"))
	}
	for _, c := range containers.Containers {
		all = append(all, c.Id+"/"+c.PodSandboxId+" "+strings.TrimPrefix(c.State.String(), "CONTAINER_"))
	}
	for _, i := range images.Images {
		all = append(all, i.Id+"="+i.RepoTags[0])
	}
	return strings.Join(all, ", ")
}

// call notes a call.
func (r *runtime) call(text string) {
	text, failed := strings.CutPrefix(text, "!")
	name, rest, _ := strings.Cut(text, " ")
	request, reply, _ := strings.Cut(rest, "->")
	cfg, err := cri()
	require.NoError(r.t, err)
	for _, m := range cfg.Schema.Methods() {
		if strings.HasPrefix(m.Name, "/runtime.v1.") && path.Base(m.Name) == name {
			n := inventory.Note{Method: m.Name, Request: prototest.Marshal(r.t, m.Input, request), OK: !failed}
			if !failed {
				n.Reply = prototest.Marshal(r.t, m.Output, reply)
			}
			r.inv.Note(r.plan(), n, time.Time{})
			return
		}
	}
	require.Fail(r.t, "no method is called "+name)
}

func (r *runtime) play(script string) {
	for line := range strings.Lines(script) {
		verb, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		verb, request, late := strings.Cut(verb, "@")
		seq := r.asked[request]
		switch {
		case verb == "status" && !late:
			seq = r.inv.BeginStatus()
		case !late && slices.Contains([]string{"ask", "pods", "containers", "images", "broken", "part"}, verb):
			seq = r.inv.Begin()
		}
		switch verb {
		case "":
		case "?":
			about, want, _ := strings.Cut(rest, " ")
			assert.Equal(r.t, want, r.what(about, want), "%s", line)
		case "ask":
			r.asked[rest] = seq
		case "pods", "containers", "images":
			r.listing(verb).Observe(seq, time.Time{}, codec.NewFrame(r.reply(verb, rest)))
		case "broken":
			r.listing("containers").Observe(seq, time.Time{}, codec.NewFrame([]byte("\x0a\x7f")))
		case "part":
			b, err := proto.Marshal(&runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{PodSandboxId: "p1"}})
			require.NoError(r.t, err)
			answer := r.reply("containers", rest)
			r.lacks = r.listing("containers").Merge(seq, b, answer)
			clear(answer) // the list has copied what it keeps
		case "status":
			id, text, _ := strings.Cut(rest, "=")
			r.listing(of(id)).KeepStatus(id, seq, []byte(text), math.MaxInt)
		case "restart":
			lists, _ := r.inv.Save()
			r.inv = inventory.New()
			for key, l := range lists {
				l.Reply = slices.Concat(slices.Collect(l.Parts(math.MaxInt))...)
				r.inv.Restore(key, l, time.Time{})
			}
			require.NoError(r.t, r.inv.Use(r.plan()))
		default:
			r.call(strings.TrimSpace(line))
		}
	}
}

// what answers a question of a script.
func (r *runtime) what(about, want string) string {
	containers := r.listing("containers")
	switch about {
	case "status":
		id, _, _ := strings.Cut(want, "=")
		reply, ok := r.listing(of(id)).StatusOf(id)
		switch {
		case !ok:
			reply = []byte("none")
		case of(id) == "images" && len(reply) > 0:
			reply = []byte("listed")
		}
		return id + "=" + string(reply)
	case "waits":
		var lists []string
		for _, name := range []string{"pods", "containers", "images"} {
			if l := r.listing(name); !l.Shows(l.Invalidated) {
				lists = append(lists, name)
			}
		}
		return strings.Join(lists, " ")
	case "due":
		ids := containers.DueStatuses(true, false)
		slices.Sort(ids)
		return strings.Join(ids, " ")
	case "lacks":
		return fmt.Sprint(r.lacks)
	case "held":
		return strings.Join(slices.DeleteFunc([]string{"c1", "c2", "c3", "c4"}, func(id string) bool { return !r.inv.Match(r.plan(), "container", id).Former }), " ")
	case "complete":
		return fmt.Sprint(r.inv.View().Complete(r.list("containers")))
	}
	return r.shows(r.inv.View(), about)
}

// The runtime answers a request from before a change after it, and shows the container as it was, as it became, or as it is
// by now.
func TestAnEarlierAnswerShowsOnlyWhatIsNewer(t *testing.T) {
	const create, start, stop, remove = `CreateContainer pod_sandbox_id: "p1" -> container_id: "c1"`, `StartContainer container_id: "c1"`, `StopContainer container_id: "c1"`, `RemoveContainer container_id: "c1"`
	const stopPod, removePod = `StopPodSandbox pod_sandbox_id: "p1"`, `RemovePodSandbox pod_sandbox_id: "p1"`
	for name, c := range map[string]struct {
		first        string // what the runtime has listed before
		calls        []string
		answer, want string
	}{
		"created, not listed yet":              {"", []string{create}, "", "c1/p1 CREATED"},
		"created, and started since":           {"", []string{create}, "c1/p1 RUNNING", "c1/p1 RUNNING"},
		"removed, still listed":                {"c1/p1 EXITED", []string{remove}, "c1/p1 EXITED", ""},
		"started, listed as before":            {"c1/p1 CREATED", []string{start}, "c1/p1 CREATED", "c1/p1 RUNNING"},
		"started, listed so already":           {"c1/p1 RUNNING", []string{start}, "c1/p1 CREATED", "c1/p1 RUNNING"},
		"started, has ended since":             {"c1/p1 CREATED", []string{start}, "c1/p1 EXITED", "c1/p1 EXITED"},
		"started, is gone since":               {"c1/p1 CREATED", []string{start}, "", ""},
		"created and started, neither":         {"", []string{create, start}, "", "c1/p1 RUNNING"},
		"created and started, one":             {"", []string{create, start}, "c1/p1 CREATED", "c1/p1 RUNNING"},
		"started and removed":                  {"c1/p1 CREATED", []string{start, remove}, "c1/p1 RUNNING", ""},
		"stopped with its pod":                 {"c1/p1 RUNNING", []string{stopPod}, "c1/p1 RUNNING", "c1/p1 EXITED"},
		"removed with its pod, unseen":         {"c2/p2 RUNNING", []string{removePod}, "c1/p1 EXITED, c2/p2 RUNNING", "c2/p2 RUNNING"},
		"started, had ended before":            {"c1/p1 EXITED", []string{start}, "c1/p1 CREATED", "c1/p1 EXITED"},
		"stopped before it was said to start":  {"c1/p1 RUNNING", []string{stop, start}, "c1/p1 RUNNING", "c1/p1 EXITED"},
		"started, unseen":                      {"", []string{start}, "c1/p1 CREATED", "c1/p1 RUNNING"},
		"stopped, unseen":                      {"", []string{stop}, "c1/p1 RUNNING", "c1/p1 EXITED"},
		"started and stopped, unseen":          {"", []string{start, stop}, "c1/p1 CREATED", "c1/p1 EXITED"},
		"stopped with its pod, unseen":         {"c2/p2 RUNNING", []string{stopPod}, "c2/p2 RUNNING, c1/p1 RUNNING", "c2/p2 RUNNING, c1/p1 EXITED"},
		"started, stopped with its pod":        {"", []string{start, stopPod}, "c1/p1 CREATED", "c1/p1 EXITED"},
		"removed, stopped again":               {"c1/p1 EXITED", []string{remove, stop}, "c1/p1 EXITED", ""},
		"removed, stopped again, unseen":       {"", []string{remove, stop}, "c1/p1 EXITED", ""},
		"removed and stopped with its pod":     {"", []string{removePod, stopPod}, "c1/p1 EXITED", ""},
		"not removed by half of its id":        {"c1/p1 EXITED", []string{`RemoveContainer container_id: "c"`}, "c1/p1 EXITED", "c1/p1 EXITED"},
		"a later answer has come before":       {"", []string{"containers c2/p1 RUNNING"}, "c1/p1 RUNNING", "c2/p1 RUNNING"},
		"a later part has come before":         {"", []string{"part c2/p1 RUNNING"}, "", "c2/p1 RUNNING"},
		"a later part has shown it before":     {"c1/p1 RUNNING", []string{"part c1/p1 EXITED"}, "c1/p1 RUNNING", "c1/p1 EXITED"},
		"a later answer has been a bad one":    {"c1/p1 RUNNING", []string{"? containers c1/p1 RUNNING", "broken"}, "", "c1/p1 RUNNING"},
		"a change that failed changes nothing": {"c1/p1 RUNNING", []string{`!StopContainer container_id: "c1"`}, "c1/p1 RUNNING", "c1/p1 RUNNING"},
	} {
		for _, kind := range []string{"containers", "part"} {
			if kind == "part" && c.answer == "" {
				continue
			}
			t.Run(name+", "+kind, func(t *testing.T) {
				newRuntime(t).play(fmt.Sprintf("containers %s\nask old\n%s\n%s@old %s\n? containers %s\ncontainers c4/p1 RUNNING\n? containers c4/p1 RUNNING",
					c.first, strings.Join(c.calls, "\n"), kind, c.answer, c.want))
			})
		}
	}
}

func TestAStatusCountsUntilItsItemChanges(t *testing.T) {
	for name, script := range map[string]string{
		"another was under way and differs": "containers c1/p1 RUNNING\n ? status c1=none\n ask one\n ask two\n ask three\n status@one c1=a\n ? status c1=a\n status@two c1=b\n ? status c1=none\n status@three c1=b\n ? status c1=none\n status c1=b\n ? status c1=b",
		"one asked earlier comes later":     "containers c1/p1 RUNNING\n ? status c1=none\n ask one\n status c1=b\n ? status c1=b\n status@one c1=a\n ? status c1=none\n ? due c1\n status c1=b\n ? status c1=b",
		"another was under way and is like": "containers c1/p1 RUNNING\n ? status c1=none\n ask one\n ask two\n status@two c1=a\n status@one c1=a\n ? status c1=a",
		"it is from before a change":        "containers c1/p1 RUNNING, c2/p1 RUNNING\n ? status c1=none\n ask old\n UpdateContainerResources container_id: 'c1'\n status@old c1=old\n status@old c2=b\n ? status c1=none\n ? status c2=b\n ? due c1",
		"a change may have failed":          "containers c1/p1 RUNNING\n status c1=a\n !UpdateContainerResources container_id: 'c1'\n ? status c1=a\n ? due c1\n ? due ",
		"a list shows a change":             "containers c1/p1 RUNNING, c2/p1 RUNNING\n status c1=a\n status c2=b\n containers c2/p1 RUNNING, c1/p1 EXITED\n ? status c1=none\n ? status c2=b",
		"a part shows a change":             "containers c1/p1 RUNNING\n status c1=a\n part c1/p1 EXITED\n ? status c1=none",
		"its pod is stopped":                "pods p1 READY\n containers c1/p1 RUNNING, c2/p2 RUNNING\n status c1=a\n status c2=b\n StopPodSandbox pod_sandbox_id: 'p1'\n ? status c1=none\n ? status c2=b",
		"a container of the pod changes":    "pods p1 READY, p2 READY\n containers c1/p1 RUNNING\n status p1=a\n status p2=b\n containers c1/p1 EXITED\n ? status p1=none\n ? status p2=b",
		"a container of the pod is stopped": "pods p1 READY\n containers c1/p1 RUNNING\n status p1=a\n StopContainer container_id: 'c1'\n ? status p1=none",
		"a container of the pod is removed": "pods p1 READY\n containers c1/p1 RUNNING\n status p1=a\n RemoveContainer container_id: 'c1'\n ? status p1=none",
		"an image gets a name":              "images i1=iapp:1\n ? status iapp:1=listed\n ? status iapp:2=\n PullImage image {image: 'iapp:2'}\n ? status iapp:2=none\n ? status iapp:1=listed",
		"an image loses a name":             "images i1=iapp:1, i2=ilib:1\n RemoveImage image {image: 'ilib:1'}\n ? status ilib:1=none\n ? status iapp:1=listed",
		"the pod gets a container":          "pods p1 READY\n status p1=a\n CreateContainer pod_sandbox_id: 'p1' -> container_id: 'c1'\n ? status p1=none",
		"the runtime has none of anything":  "containers c1/p1 RUNNING\n status c1=a\n status c1=\n ? status c1=a",
		"its item is not listed":            "containers c1/p1 RUNNING\n status c2=b\n containers c1/p1 RUNNING, c2/p1 RUNNING\n ? status c2=none",
		"two ids begin so":                  "containers c1/p1 RUNNING, c2/p1 RUNNING\n status c1=a\n ? status c1=a\n ? status c=none",
		"a process has saved it":            "containers c1/p1 RUNNING, c2/p1 RUNNING\n status c1=a\n status c2=b\n UpdateContainerResources container_id: 'c2'\n restart\n ? status c1=a\n ? status c2=none",
	} {
		t.Run(name, func(t *testing.T) { newRuntime(t).play(script) })
	}
}

func TestAPartLacksOnlyWhatTheRuntimeHasRemoved(t *testing.T) {
	newRuntime(t).play(`
		containers c1/p1 RUNNING, c2/p2 RUNNING
		part c1/p1 RUNNING
		? lacks false
		ask old
		CreateContainer pod_sandbox_id: "p1" -> container_id: "c3"
		part@old c1/p1 RUNNING
		? lacks false
		part c1/p1 RUNNING
		? lacks true
		containers c1/p1 RUNNING
		ask old
		part c3/p1 RUNNING, c1/p1 RUNNING
		part@old c1/p1 RUNNING
		? lacks false`)
}

// A filtered answer used to put items back as they were when the answer to a later request had shown them as they are.
func TestOfTwoPartsTheLaterRequestCountsForEachItem(t *testing.T) {
	newRuntime(t).play(`
		containers c1/p1 RUNNING, c2/p1 RUNNING
		ask first
		ask second
		ask third
		part@third c1/p1 RUNNING
		part@first c1/p1 CREATED, c2/p1 CREATED
		? containers c1/p1 RUNNING, c2/p1 CREATED
		part@second c1/p1 CREATED, c2/p1 RUNNING
		? containers c1/p1 RUNNING, c2/p1 RUNNING
		part c1/p1 EXITED
		? containers c1/p1 EXITED, c2/p1 RUNNING
		containers c1/p1 EXITED, c2/p1 RUNNING
		part@third c1/p1 RUNNING
		? containers c1/p1 EXITED, c2/p1 RUNNING`)
}

func TestABrokenListIsNotAnEmptyOne(t *testing.T) {
	newRuntime(t).play(`
		? complete false
		broken
		? complete false
		containers
		? complete true
		containers c1/p1 RUNNING
		? complete true
		broken
		? complete true
		? containers c1/p1 RUNNING`)
}

// After a handover, a call about a removed container used to go to another runtime, and to wait for that.
func TestTheNextProcessKnowsWhoseRemovedItemsWere(t *testing.T) {
	newRuntime(t).play(`
		containers c1/p1 RUNNING, c2/p1 RUNNING, c3/p1 RUNNING
		RemoveContainer container_id: "c1"
		containers c3/p1 RUNNING
		? held c1 c2
		restart
		? held c1 c2
		? containers c3/p1 RUNNING
		containers c1/p1 RUNNING, c3/p1 RUNNING
		? held c2`)
}

// After a confirmed change, lists show what it did. The exceptions are those where only the runtime knows what became of its
// items: its next answer shows that, and lists wait for it.
func TestListsShowEachConfirmedChange(t *testing.T) {
	before := map[string]string{"pods": "p1 READY, p2 READY", "containers": "c1/p1 RUNNING, c2/p2 CREATED", "images": "i1=app:1"}
	named := map[string]bool{}
	for _, c := range []struct{ call, list, shown, waits string }{
		{`RunPodSandbox config {} -> pod_sandbox_id: "p3"`, "pods", "p1 READY, p2 READY, p3 READY", ""},
		{`StopPodSandbox pod_sandbox_id: "p1"`, "pods", "p1 NOTREADY, p2 READY", ""},
		{`StopPodSandbox pod_sandbox_id: "p1"`, "containers", "c1/p1 EXITED, c2/p2 CREATED", ""},
		{`StopPodSandbox pod_sandbox_id: "p2"`, "pods", "p1 READY, p2 NOTREADY", "containers"}, // c2 may have exited, or not
		{`RemovePodSandbox pod_sandbox_id: "p1"`, "pods", "p2 READY", ""},
		{`RemovePodSandbox pod_sandbox_id: "p1"`, "containers", "c2/p2 CREATED", ""},
		{`UpdatePodSandboxResources pod_sandbox_id: "p1"`, "", "", ""},
		{`CheckpointPod pod_sandbox_id: "p1"`, "", "", ""},
		{`RestorePod config {} -> pod_sandbox_id: "p3"`, "pods", "p1 READY, p2 READY, p3 READY", "containers"},
		{`CreateContainer pod_sandbox_id: "p1" -> container_id: "c3"`, "containers", "c1/p1 RUNNING, c2/p2 CREATED, c3/p1 CREATED", ""},
		{`StartContainer container_id: "c2"`, "containers", "c1/p1 RUNNING, c2/p2 RUNNING", ""},
		{`StopContainer container_id: "c1"`, "containers", "c1/p1 EXITED, c2/p2 CREATED", ""},
		{`StopContainer container_id: "c2"`, "", "", "containers"}, // as above
		{`RemoveContainer container_id: "c1"`, "containers", "c2/p2 CREATED", ""},
		{`UpdateContainerResources container_id: "c1"`, "", "", ""},
		{`CheckpointContainer container_id: "c1"`, "", "", ""},
		{`ReopenContainerLog container_id: "c1"`, "", "", ""},
		{`ExecSync container_id: "c1"`, "", "", ""},
		{`Exec container_id: "c1"`, "", "", ""},
		{`Attach container_id: "c1"`, "", "", ""},
		{`PortForward pod_sandbox_id: "p1"`, "", "", ""},
		{`UpdateRuntimeConfig`, "", "", ""},
		{`PullImage image {image: "app:2"} -> image_ref: "i2"`, "", "", "images"}, // only the runtime knows the size of i2
		{`RemoveImage image {image: "i1"}`, "images", "", ""},
		{`RemoveImage image {image: "app:1"}`, "", "", "images"}, // i1 may have gone, or its name
	} {
		name, _, _ := strings.Cut(c.call, " ")
		named[name] = true
		t.Run(c.call+" "+c.list, func(t *testing.T) {
			r := newRuntime(t)
			for list, items := range before {
				r.play(list + " " + items)
			}
			r.play("? waits \n" + c.call + "\n? waits " + c.waits)
			for list, items := range before {
				if list == c.list {
					items = c.shown
				}
				if c.list == list || c.list == "" {
					r.play("? " + list + " " + items)
				}
			}
		})
	}
	cfg, err := cri()
	require.NoError(t, err)
	for _, m := range cfg.Schema.Methods() {
		method := path.Base(m.Name)
		if strings.HasPrefix(m.Name, "/runtime.v1.") && !cfg.Profile.OnlyReads(method) {
			assert.True(t, named[method], "%s has no case", method)
		}
	}
}

func TestAFilterFindsItsItems(t *testing.T) {
	r := newRuntime(t)
	b, err := proto.Marshal(&runtimeapi.ListContainersResponse{Containers: []*runtimeapi.Container{
		{Id: "a1", PodSandboxId: "p1"},
		{Id: "a2", PodSandboxId: "p2", State: runtimeapi.ContainerState_CONTAINER_RUNNING, Labels: map[string]string{"x": "1", "y": "2"}},
		{Id: "b1", PodSandboxId: "p1"},
	}})
	require.NoError(t, err)
	r.listing("containers").Observe(r.inv.Begin(), time.Time{}, codec.NewFrame(b))
	list := r.list("containers")
	for request, want := range map[string]string{
		``:                              "a1 a2 b1",
		`filter {id: "a1"}`:             "a1",
		`filter {id: "a"}`:              "a1 a2",
		`filter {id: "c"}`:              "",
		`filter {pod_sandbox_id: "p1"}`: "a1 b1",
		`filter {state {state: CONTAINER_RUNNING}}`:                               "a2",
		`filter {state {}}`:                                                       "a1 b1", // zero is not on the wire
		`filter {label_selector {key: "x" value: "1"}}`:                           "a2",
		`filter {label_selector {key: "x" value: "2"}}`:                           "",
		`filter {label_selector {key: "x" value: "1"} label_selector {key: "z"}}`: "",
		`filter {id: "a" state {}}`:                                               "a1",
	} {
		answer, err := r.inv.View().Answer(list, prototest.Marshal(t, list.Unary.Input, request))
		require.NoError(t, err)
		var listed runtimeapi.ListContainersResponse
		require.NoError(t, proto.Unmarshal(answer, &listed))
		var ids []string
		for _, c := range listed.Containers {
			ids = append(ids, c.Id)
		}
		assert.Equal(t, want, strings.Join(ids, " "), request)
		assert.Equal(t, request == ``, list.Unfiltered(prototest.Marshal(t, list.Unary.Input, request)), request)
	}
	assert.False(t, list.Unfiltered([]byte("\x7a\x02a1")), "a filter that only the runtime knows")
}

func TestAnIDIsFoundByItsBeginning(t *testing.T) {
	r := newRuntime(t)
	r.play("containers c12/p1 RUNNING, c13/p1 RUNNING\n CreateContainer pod_sandbox_id: 'p1' -> container_id: 'c2'")
	for name, want := range map[string]int{"c12": 1, "c1": 2, "c2": 1, "c": 3, "d": 0} {
		assert.Equal(t, inventory.Match{N: want, Whole: name == "c12" || name == "c2"}, r.inv.Match(r.plan(), "container", name), name)
		assert.Zero(t, r.inv.Match(r.plan(), "sandbox", name), "another kind")
	}
	assert.Equal(t, map[string]int{"sandbox": 0, "container": 3}, r.inv.View().Counts(r.plan()))
}

// A reload compiles a plan, and may fail after that: then the process goes on with the plan before.
func TestAPlanWithoutAListLeavesItToOthers(t *testing.T) {
	r := newRuntime(t)
	r.play("containers c1/p1 RUNNING")
	cfg, err := cri()
	require.NoError(t, err)
	fewer, err := inventory.Compile(inventory.Spec{Lists: cfg.Profile.Known.Lists[:1]}, cfg.Schema, "runtime.v1", nil)
	require.NoError(t, err)
	require.NoError(t, r.inv.Use(fewer))
	assert.Zero(t, r.inv.Match(fewer, "container", "c1"))
	assert.True(t, r.inv.Match(r.plan(), "container", "c1").Whole)
	r.play("containers c2/p1 RUNNING\n ? containers c2/p1 RUNNING")
}

func TestAViewStaysAsItIs(t *testing.T) {
	r := newRuntime(t)
	r.play("containers c1/p1 CREATED, c2/p1 RUNNING")
	view := r.inv.View()
	for _, step := range []struct{ change, want string }{
		{"containers c2/p1 RUNNING, c1/p1 CREATED", ""}, // as before, in another order
		{`StartContainer container_id: "c1"`, "c1/p1 RUNNING, c2/p1 RUNNING"},
		{`RemoveContainer container_id: "c1"`, "c2/p1 RUNNING"},
		{`CreateContainer pod_sandbox_id: "p1" -> container_id: "c3"`, "c2/p1 RUNNING, c3/p1 CREATED"},
		{"part c2/p1 EXITED", "c2/p1 EXITED, c3/p1 CREATED"},
		{"containers c4/p1 RUNNING", "c4/p1 RUNNING"},
	} {
		r.play(step.change)
		assert.Equal(t, "c1/p1 CREATED, c2/p1 RUNNING", r.shows(view, "containers"), step.change)
		now := r.inv.View()
		assert.Equal(t, step.want == "", now == view, step.change)
		if step.want != "" {
			assert.Equal(t, step.want, r.shows(now, "containers"), step.change)
		}
	}
}

// An old reply used to stay in memory, all of it, as long as one of its items.
func TestAnItemDoesNotKeepTheReplyThatItCameIn(t *testing.T) {
	r := newRuntime(t)
	body := func() (first *byte) {
		r.inv.View().Any(r.list("containers"), func(item []byte) bool { first = &item[0]; return true })
		return first
	}
	r.play("containers c1/p1 CREATED")
	inReply := body()
	r.play("ask old\n CreateContainer pod_sandbox_id: 'p1' -> container_id: 'c1'\n containers@old \n ? containers c1/p1 CREATED")
	assert.NotSame(t, inReply, body(), "it was copied")
}

// Nodes have a hundred pods. A list that is a hundred times as long is right in all that it goes through.
func TestAListOfTenThousandItemsIsRight(t *testing.T) {
	untested.TakesLong(t)
	const n, removed, stopped = 10_000, 100, 200 // pods before removed are removed, with their containers; containers before stopped are stopped
	r := newRuntime(t)
	text := func(from, to int, item string) string { // item has its number
		var all []string
		for i := from; i < to; i++ {
			all = append(all, strings.ReplaceAll(item, "#", fmt.Sprintf("%05d", i)))
		}
		return strings.Join(all, ", ")
	}
	shows := func(list, want string) {
		t.Helper()
		items, got := strings.Split(want, ", "), strings.Split(r.shows(r.inv.View(), list), ", ")
		require.Len(t, got, len(items))
		for i := range items {
			require.Equal(t, items[i], got[i])
		}
	}
	allPods, allContainers := text(0, n, "p# READY"), text(0, n, "c#/p# RUNNING")
	r.play("pods " + allPods + "\n containers " + allContainers)
	shows("pods", allPods)
	shows("containers", allContainers)
	r.play("ask old")
	for i := range removed {
		r.play(fmt.Sprintf("StopPodSandbox pod_sandbox_id: 'p%05d' \n RemovePodSandbox pod_sandbox_id: 'p%05[1]d'", i))
	}
	for i := removed; i < stopped; i++ {
		r.play(fmt.Sprintf("StopContainer container_id: 'c%05d'", i))
	}
	r.play("CreateContainer pod_sandbox_id: 'p09999' -> container_id: 'new'")
	for _, then := range []string{"", "pods@old " + allPods, "containers@old " + allContainers, "restart"} {
		r.play(then)
		shows("pods", text(removed, n, "p# READY"))
		shows("containers", text(removed, stopped, "c#/p# EXITED")+", "+text(stopped, n, "c#/p# RUNNING")+", new/p09999 CREATED")
	}
	match := func(i int) inventory.Match { return r.inv.Match(r.plan(), "container", fmt.Sprintf("c%05d", i)) }
	for i := range n {
		want := inventory.Match{N: 1, Whole: true}
		if i < removed {
			want = inventory.Match{Former: true}
		}
		require.Equal(t, want, match(i), i)
	}
	assert.Equal(t, inventory.Match{N: 1000}, r.inv.Match(r.plan(), "container", "c09"))

	r.play("containers " + text(0, 3, "c#/p# RUNNING"))
	shows("containers", text(0, 3, "c#/p# RUNNING"))
	former := 0
	for i := range n {
		if match(i).Former {
			former++
		}
	}
	assert.GreaterOrEqual(t, former, 2_000)
	assert.Less(t, former, 4_000, "the rest is forgotten")
}
