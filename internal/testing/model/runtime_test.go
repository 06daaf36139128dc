package model

import (
	"bytes"
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/transport"
)

// A kind is a kind of item: sandboxes or containers.
type kind int

const (
	sandboxes kind = iota
	containers
)

func (k kind) String() string { return [...]string{"sandboxes", "containers"}[k] }

// item is a sandbox or a container, with its true state and history.
type item struct {
	kind     kind
	id, pod  string
	labels   map[string]string
	versions []version
	created  time.Time
	removed  time.Time // zero: it exists
	ours     time.Time // when the client's call that created it was answered; zero: no client's did
	gone     time.Time // when the client's call that removed it was answered; zero: none did
	by       int       // the process through which that call went
	touched  time.Time // when the latest call that may have changed it reached the runtime

	image *runtimeapi.ImageSpec // of the request that created it
	notes map[string]string     // annotations of that request

	// wrote is the image as the client wrote it, in a call through writtenTo that was answered.
	wrote     string
	writtenTo place

	// least is the version that a client's call has made, when that call was answered, and by which
	// process.
	least   int
	leastAt time.Time
	leastBy int
}

// version is the state of an item from a moment on.
type version struct {
	at    time.Time
	state int32
}

func (i *item) state() int32 { return i.versions[len(i.versions)-1].state }

func (i *item) annotations() map[string]string {
	all := map[string]string{"io.kubernetes.pod.note": "x"}
	maps.Copy(all, i.notes)
	all["version"] = fmt.Sprint(len(i.versions) - 1)
	return all
}

func (i *item) sandbox() *runtimeapi.PodSandbox {
	return &runtimeapi.PodSandbox{Id: i.id, Metadata: &runtimeapi.PodSandboxMetadata{Name: i.id, Uid: "uid-" + i.id, Namespace: "default"},
		State: runtimeapi.PodSandboxState(i.state()), Labels: i.labels, Annotations: i.annotations(), CreatedAt: i.created.UnixNano()}
}

func (i *item) container() *runtimeapi.Container {
	return &runtimeapi.Container{Id: i.id, PodSandboxId: i.pod, Metadata: &runtimeapi.ContainerMetadata{Name: i.id},
		State: runtimeapi.ContainerState(i.state()), Labels: i.labels, Annotations: i.annotations(), CreatedAt: i.created.UnixNano(), Image: i.image}
}

const (
	ready, notReady       = int32(runtimeapi.PodSandboxState_SANDBOX_READY), int32(runtimeapi.PodSandboxState_SANDBOX_NOTREADY)
	made, running, exited = int32(runtimeapi.ContainerState_CONTAINER_CREATED), int32(runtimeapi.ContainerState_CONTAINER_RUNNING), int32(runtimeapi.ContainerState_CONTAINER_EXITED)
)

// phase is a weather with its beginning.
type phase struct {
	weather
	from    time.Time
	address int    // where it listens
	api     string // the only version of CRI that it has
}

// The versions of CRI that runtimes have. The former has no streams.
const (
	v1       = "runtime.v1"
	v1alpha2 = "runtime.v1alpha2"
)

// drawAPI draws the version that a runtime has from now on. One has only streams.
func (r *runtime) drawAPI(rnd *rand.Rand) string {
	if r.name == "C" || rnd.IntN(4) > 0 {
		return v1
	}
	return v1alpha2
}

// change is the time that a mutating call spent at the runtime.
type change struct {
	from, to time.Time
	failed   bool // the runtime answered with an error, or too late: no client knows whether it made the change
	known    bool // what it changes is known without the runtime
}

// answered is a complete list that reached a process.
type answered struct {
	process   int
	asked, at time.Time
}

// runtime is one fake container runtime, in memory.
type runtime struct {
	world *world
	name  string

	// world.mu guards the fields below.
	rnd      *rand.Rand
	phases   []phase
	epoch    chan struct{} // closed when it crashes
	turn     chan struct{} // closed when the weather changes
	news     [][]byte      // events
	more     chan struct{} // closed when there is another event
	items    [2][]*item
	next     int
	changes  [2][]*change
	history  [2][]answered
	met      bool         // it has answered a call, even with an error
	looks    [2]time.Time // when the latest requested list is read
	arrivals map[any]int  // :: token of a call → how often it arrived
	done     map[any]bool // :: token of a call → it was answered with OK
	server   *transport.Server
	links    []*link // from criproxy
	active   int     // calls of clients under way that change something
}

func newRuntime(w *world, name string, seed uint64) *runtime {
	r := &runtime{world: w, name: name, rnd: rand.New(rand.NewPCG(seed, uint64(name[0]))), epoch: make(chan struct{}), turn: make(chan struct{}), more: make(chan struct{}),
		arrivals: map[any]int{}, done: map[any]bool{}}
	r.server = r.newServer()
	r.phases = []phase{{clear(), time.Now(), 0, r.drawAPI(w.chance("api of "+name, -1))}}
	for range 2 + r.rnd.IntN(3) {
		s := r.add(sandboxes, "", ready)
		for range r.rnd.IntN(3) {
			r.add(containers, s.id, running)
		}
	}
	return r
}

func (r *runtime) now() *phase { return &r.phases[len(r.phases)-1] }

// address returns where the runtime listens now.
func (r *runtime) address() int {
	r.world.mu.Lock()
	defer r.world.mu.Unlock()
	return r.now().address
}

// during returns the phases that overlap with a time.
func (r *runtime) during(from, to time.Time) []phase {
	var all []phase
	for i, p := range r.phases {
		if !p.from.After(to) && (i+1 == len(r.phases) || r.phases[i+1].from.After(from)) {
			all = append(all, p)
		}
	}
	return all
}

// turns changes the weather and the address of r.
func (r *runtime) turns(w weather, address int) {
	r.world.mu.Lock()
	defer r.world.mu.Unlock()
	if w.down || w.barred || address != r.now().address {
		close(r.epoch)
		r.epoch = make(chan struct{})
	}
	kept := r.links[:0]
	for _, l := range r.links {
		if w.down || w.barred || address != r.now().address {
			l.breakNow()
			continue
		}
		kept = append(kept, l)
		l.stall(w.frozen && w.stall == 0)
		if w.cut >= 0 || w.stall > 0 {
			l.limit(max(w.cut, w.stall), w.stall > 0)
			time.AfterFunc(5*time.Second, func() { r.runsOut(l) })
		}
	}
	r.links = kept
	close(r.turn)
	r.turn = make(chan struct{})
	api := r.now().api
	if r.now().down && !w.down && r.world.happensNow("upgrade-"+r.name, len(r.phases), upgrade) {
		api = r.drawAPI(r.world.chance("api of "+r.name, len(r.phases)))
	}
	r.phases = append(r.phases, phase{w, time.Now(), address, api})
	r.world.trace("runtime %s: %s (address %d, %s)", r.name, w, address, api)
}

// runsOut cuts or stalls a link at last, if too few bytes have passed.
func (r *runtime) runsOut(l *link) {
	r.world.mu.Lock()
	defer r.world.mu.Unlock()
	switch p := r.now(); {
	case time.Since(p.from) < 5*time.Second: // another weather
	case p.cut >= 0 && l.pending():
		l.breakNow()
	case p.stall > 0:
		l.stall(true)
	}
}

func (r *runtime) add(k kind, pod string, state int32) *item {
	r.next++
	i := &item{kind: k, id: fmt.Sprintf("%s%c%03d", strings.ToLower(r.name), "sc"[k], r.next), pod: pod, created: time.Now(),
		labels: map[string]string{"colour": []string{"red", "blue"}[r.next%2], "app": "x"}}
	i.versions = []version{{time.Now(), state}}
	r.items[k] = append(r.items[k], i)
	r.happened(i)
	return i
}

func (r *runtime) find(k kind, id string) *item {
	if i := r.item(k, id); i != nil && i.removed.IsZero() {
		return i
	}
	return nil
}

func (r *runtime) become(i *item, state int32) {
	if i.state() != state {
		i.versions = append(i.versions, version{time.Now(), state})
		r.happened(i)
	}
}

func (r *runtime) remove(i *item) {
	i.removed = time.Now()
	r.happened(i)
}

// reboots ends the runtime, all containers, and some of its items. It is down until the weather changes.
func (r *runtime) reboots() {
	w := clear()
	w.name, w.down = "reboots", true
	r.turns(w, r.address())
	r.world.mu.Lock()
	defer r.world.mu.Unlock()
	for k := range r.items {
		r.changes[k] = append(r.changes[k], &change{from: time.Now(), to: time.Now()})
		for _, i := range r.items[k] {
			switch {
			case !i.removed.IsZero():
			case r.rnd.IntN(3) == 0:
				r.remove(i)
			default:
				r.become(i, []int32{notReady, exited}[k])
			}
		}
	}
	r.met = false
}

// happens changes items of the runtime without a client's call.
func (r *runtime) happens() {
	r.world.mu.Lock()
	defer r.world.mu.Unlock()
	k := kind(r.rnd.IntN(2))
	var there []*item
	for _, i := range r.items[k] {
		if i.removed.IsZero() {
			there = append(there, i)
		}
	}
	if len(there) == 0 {
		return
	}
	i := there[r.rnd.IntN(len(there))]
	r.changes[k] = append(r.changes[k], &change{from: time.Now(), to: time.Now()})
	switch {
	case k == sandboxes:
		r.become(i, notReady)
	case i.state() == exited && r.rnd.IntN(3) == 0:
		r.remove(i)
	default:
		r.become(i, exited)
	}
	r.world.trace("runtime %s: %s changes by itself", r.name, i.id)
}

// unreachable is the error that dial.Conn returns for a call to a runtime that is down.
type unreachable struct{ why string }

func (e *unreachable) Error() string { return e.GRPCStatus().Err().Error() }
func (e *unreachable) GRPCStatus() *status.Status {
	return status.Newf(codes.Unavailable, "criproxy: backend cannot be reached: %s", e.why)
}
func (e *unreachable) Unreachable() bool { return true }

// classOf returns the class of a method.
func classOf(method string) class {
	switch {
	case method == "Version":
		return alive
	case strings.HasPrefix(method, "List"), strings.HasPrefix(method, "Stream"):
		return lists
	case method == "PodSandboxStatus", method == "ContainerStatus":
		return statuses
	}
	return rest
}

func listed(method string) (kind, bool) {
	switch method {
	case "ListPodSandbox", "StreamPodSandboxes":
		return sandboxes, true
	case "ListContainers", "StreamContainers":
		return containers, true
	}
	return 0, false
}

// serve answers a call as the runtime does.
func (w *wire) serve(ctx context.Context, full string, body []byte) (_ []byte, err error) {
	r, method := w.runtime, path.Base(full)
	asked := time.Now()
	r.world.mu.Lock()
	if err := w.reach(); err != nil {
		r.world.mu.Unlock()
		return nil, err
	}
	c, epoch := classOf(method), r.epoch
	k, isList := listed(method)
	has := w.has(full)
	isList = isList && has
	rnd := r.chance(full, body, asked)
	took := r.now().latency[c].draw(rnd)
	if isList && !r.now().concerns(k) || !has {
		took = fast
	}
	before := time.Duration(rnd.Float64() * float64(took))
	if isList { // it looks at its items for one list after another, as if under a lock
		r.looks[k] = later(r.looks[k], asked.Add(before))
		before = r.looks[k].Sub(asked)
		took = max(took, before)
	}
	dies, cut := rnd.IntN(2) == 0, rnd.IntN(2) == 0
	token := tokenOf(ctx, method)
	var marks []*change
	if token != nil {
		r.active++
		defer func() {
			r.world.mu.Lock()
			defer r.world.mu.Unlock()
			r.active--
		}()
		r.arrivals[token]++
		for _, k := range changed(method) {
			m := &change{from: time.Now(), known: r.known(method, body)}
			marks, r.changes[k] = append(marks, m), append(r.changes[k], m)
		}
		r.touch(method, body)
	}
	r.world.mu.Unlock()
	defer func() {
		r.world.mu.Lock()
		defer r.world.mu.Unlock()
		for _, m := range marks {
			m.to, m.failed = time.Now(), err != nil
		}
	}()

	if err := w.pause(ctx, epoch, c, k, isList, before); err != nil {
		if len(marks) > 0 && !dies && ctx.Err() != nil { // the runtime makes the change all the same, later
			r.world.group.Go(func() {
				if w.pause(r.world.ctx, epoch, c, k, false, time.Second) == nil {
					r.world.mu.Lock()
					defer r.world.mu.Unlock()
					_, _ = r.do(method, body)
					for _, k := range changed(method) {
						r.changes[k] = append(r.changes[k], &change{from: asked, to: time.Now(), failed: true})
					}
					r.touch(method, body)
					r.world.trace("runtime %s: does %s after its client has gone", r.name, method)
				}
			})
		}
		return nil, err
	}
	r.world.mu.Lock()
	p := r.now()
	code := p.code
	if isList && p.list != 0 && p.concerns(k) {
		code = p.list
	}
	if c == statuses && p.status != 0 {
		code = p.status
	}
	var reply proto.Message
	if !has {
		code = codes.Unimplemented
	}
	if code == 0 {
		reply, err = r.do(method, body)
	} else {
		err = status.Errorf(code, "the weather is bad")
	}
	broken := isList && p.broken && p.concerns(k)
	var out []byte
	if err == nil {
		out, err = proto.Marshal(reply)
	}
	if isList && p.latin && p.concerns(k) {
		out = bytes.ReplaceAll(out, []byte("note"), []byte("not\xe9"))
	}
	r.world.mu.Unlock()
	if waitErr := w.pause(ctx, epoch, c, k, isList, took-before); waitErr != nil {
		return nil, waitErr
	}
	r.world.mu.Lock()
	defer r.world.mu.Unlock()
	r.met = true
	if err != nil {
		return nil, err
	}
	switch {
	case broken && cut && len(out) > 0:
		return out[:len(out)-1], nil
	case broken:
		return append(out, 0x0a, 3, 0x0a, 9, 'x'), nil
	}
	if isList && len(body) == 0 && !w.retired {
		r.history[k] = append(r.history[k], answered{w.process, asked, time.Now()})
	}
	if token != nil {
		r.done[token] = true
	}
	return out, nil
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// chance derives its result from the request and its time, because calls at the same instant come in
// any order.
func (r *runtime) chance(method string, body []byte, asked time.Time) *rand.Rand {
	h := fnv.New64a()
	fmt.Fprint(h, r.world.seed, r.name, method, body, asked.UnixNano())
	return rand.New(rand.NewPCG(h.Sum64(), 0))
}

// reach returns why the runtime cannot be reached. world.mu is held.
func (w *wire) reach() error {
	p := w.runtime.now()
	switch {
	case p.down || p.address != w.address:
		return &unreachable{"connect: connection refused"}
	case p.barred:
		return &unreachable{"connect: permission denied"}
	}
	return nil
}

// pause waits, unless the runtime crashes or the client leaves.
func (w *wire) pause(ctx context.Context, epoch chan struct{}, c class, k kind, isList bool, d time.Duration) error {
	r := w.runtime
	t := time.NewTimer(d)
	defer t.Stop()
	due := false
	for {
		r.world.mu.Lock()
		p, turn := r.now(), r.turn
		hangs := p.frozen || p.hangs[c] && (!isList || p.concerns(k))
		r.world.mu.Unlock()
		if due && !hangs {
			return nil
		}
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-epoch:
			return &unreachable{"connection reset by peer"}
		case <-t.C:
			due = true
		case <-turn:
		}
	}
}

// changed returns the kinds of lists that a method changes.
func changed(method string) []kind {
	switch method {
	case "RunPodSandbox":
		return []kind{sandboxes}
	case "StopPodSandbox", "RemovePodSandbox":
		return []kind{sandboxes, containers}
	case "CreateContainer", "StartContainer", "StopContainer", "RemoveContainer":
		return []kind{containers}
	}
	return nil
}

// known reports whether the answer OK says what a call has made of its items. A container that was never
// started may stay as it is when it is stopped. world.mu is held.
func (r *runtime) known(method string, body []byte) bool {
	if method != "StopContainer" && method != "StopPodSandbox" {
		return true
	}
	k, id := subject(method, body)
	return !slices.ContainsFunc(r.items[containers], func(i *item) bool {
		return i.versions[0].state == made && (k == containers && i.id == id || k == sandboxes && i.pod == id)
	})
}

// touch notes which items a call may change. world.mu is held.
func (r *runtime) touch(method string, body []byte) {
	k, id := subject(method, body)
	for _, i := range r.items[k] {
		if i.id == id {
			i.touched = time.Now()
		}
	}
	if k == sandboxes {
		for _, i := range r.items[containers] {
			if i.pod == id {
				i.touched = time.Now()
			}
		}
	}
}

// subject returns the id of the item that a request is about.
func subject(method string, body []byte) (kind, string) {
	switch method {
	case "StartContainer", "StopContainer", "RemoveContainer":
		m := decode(body, &runtimeapi.StartContainerRequest{}) // all these requests have the id in field 1
		return containers, m.ContainerId
	case "StopPodSandbox", "RemovePodSandbox":
		return sandboxes, decode(body, &runtimeapi.StopPodSandboxRequest{}).PodSandboxId
	}
	return containers, ""
}

func decode[M proto.Message](body []byte, m M) M {
	if err := proto.Unmarshal(body, m); err != nil {
		panic(err)
	}
	return m
}

// do executes a call. world.mu is held.
func (r *runtime) do(method string, body []byte) (proto.Message, error) {
	switch method {
	case "Version":
		return &runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: r.name, RuntimeApiVersion: strings.TrimPrefix(r.now().api, "runtime.")}, nil
	case "Status":
		return &runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{{Type: "RuntimeReady", Status: true}}}}, nil
	case "ListPodSandbox", "StreamPodSandboxes":
		f := decode(body, &runtimeapi.ListPodSandboxRequest{}).GetFilter()
		answer := &runtimeapi.ListPodSandboxResponse{}
		for _, i := range r.shuffled(sandboxes) {
			if strings.HasPrefix(i.id, f.GetId()) && (f.GetState() == nil || int32(f.State.State) == i.state()) && within(f.GetLabelSelector(), i.labels) {
				answer.Items = append(answer.Items, i.sandbox())
			}
		}
		return answer, nil
	case "ListContainers", "StreamContainers":
		f := decode(body, &runtimeapi.ListContainersRequest{}).GetFilter()
		answer := &runtimeapi.ListContainersResponse{}
		for _, i := range r.shuffled(containers) {
			if strings.HasPrefix(i.id, f.GetId()) && (f.GetState() == nil || int32(f.State.State) == i.state()) &&
				(f.GetPodSandboxId() == "" || i.pod == f.GetPodSandboxId()) && within(f.GetLabelSelector(), i.labels) {
				answer.Containers = append(answer.Containers, i.container())
			}
		}
		return answer, nil
	case "PodSandboxStatus":
		id := decode(body, &runtimeapi.PodSandboxStatusRequest{}).PodSandboxId
		i := r.find(sandboxes, id)
		if i == nil {
			return nil, status.Errorf(codes.NotFound, "no sandbox %s", id)
		}
		return &runtimeapi.PodSandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{Id: id, State: runtimeapi.PodSandboxState(i.state()), Annotations: i.annotations(), Labels: i.labels}}, nil
	case "ContainerStatus":
		id := decode(body, &runtimeapi.ContainerStatusRequest{}).ContainerId
		i := r.find(containers, id)
		if i == nil {
			return nil, status.Errorf(codes.NotFound, "no container %s", id)
		}
		return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{Id: id, State: runtimeapi.ContainerState(i.state()), Annotations: i.annotations(), Labels: i.labels, Image: i.image, Reason: "as it is"}}, nil
	case "RunPodSandbox":
		i := r.add(sandboxes, "", ready)
		i.labels = decode(body, &runtimeapi.RunPodSandboxRequest{}).GetConfig().GetLabels()
		return &runtimeapi.RunPodSandboxResponse{PodSandboxId: i.id}, nil
	case "CreateContainer":
		request := decode(body, &runtimeapi.CreateContainerRequest{})
		pod := request.PodSandboxId
		if r.find(sandboxes, pod) == nil {
			return nil, status.Errorf(codes.NotFound, "no sandbox %s", pod)
		}
		i := r.add(containers, pod, made)
		i.labels, i.image, i.notes = request.GetConfig().GetLabels(), request.GetConfig().GetImage(), request.GetConfig().GetAnnotations()
		return &runtimeapi.CreateContainerResponse{ContainerId: i.id}, nil
	case "StartContainer":
		_, id := subject(method, body)
		i := r.find(containers, id)
		if i == nil {
			return nil, status.Errorf(codes.NotFound, "no container %s", id)
		}
		if i.state() != made {
			return nil, status.Errorf(codes.FailedPrecondition, "container %s has been started", id)
		}
		r.become(i, running)
		return &runtimeapi.StartContainerResponse{}, nil
	case "StopContainer", "RemoveContainer":
		_, id := subject(method, body)
		if i := r.find(containers, id); i != nil && method == "StopContainer" {
			r.become(i, exited)
		} else if i != nil {
			r.remove(i)
		}
		return &runtimeapi.StopContainerResponse{}, nil
	case "StopPodSandbox", "RemovePodSandbox":
		_, id := subject(method, body)
		for _, c := range r.items[containers] {
			if c.pod == id && c.removed.IsZero() {
				r.become(c, exited)
				if method == "RemovePodSandbox" {
					r.remove(c)
				}
			}
		}
		if i := r.find(sandboxes, id); i != nil {
			r.become(i, notReady)
			if method == "RemovePodSandbox" {
				r.remove(i)
			}
		}
		return &runtimeapi.StopPodSandboxResponse{}, nil
	case "ExecSync":
		if id := decode(body, &runtimeapi.ExecSyncRequest{}).ContainerId; r.find(containers, id) == nil {
			return nil, status.Errorf(codes.NotFound, "no container %s", id)
		}
		return &runtimeapi.ExecSyncResponse{Stdout: []byte("done")}, nil
	case "ListImages", "StreamImages":
		return &runtimeapi.ListImagesResponse{Images: []*runtimeapi.Image{{Id: "sha256:" + r.name, RepoTags: []string{"app:1"}}}}, nil
	case "ImageFsInfo":
		return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: []*runtimeapi.FilesystemUsage{{Timestamp: 1, FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: "/" + r.name}}}}, nil
	case "ListContainerStats", "StreamContainerStats":
		answer := &runtimeapi.ListContainerStatsResponse{}
		for _, i := range r.shuffled(containers) {
			answer.Stats = append(answer.Stats, &runtimeapi.ContainerStats{Attributes: &runtimeapi.ContainerAttributes{Id: i.id}})
		}
		return answer, nil
	case "ListMetricDescriptors":
		return &runtimeapi.ListMetricDescriptorsResponse{}, nil
	}
	return nil, status.Errorf(codes.Unimplemented, "unknown method %s", method)
}

// shuffled returns the existing items in random order.
func (r *runtime) shuffled(k kind) []*item {
	all := slices.DeleteFunc(slices.Clone(r.items[k]), func(i *item) bool { return !i.removed.IsZero() })
	r.rnd.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

func within(want, has map[string]string) bool {
	for k, v := range want {
		if has[k] != v {
			return false
		}
	}
	return true
}
