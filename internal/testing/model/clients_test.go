package model

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/transport"
)

// call is a call of a client.
type call struct {
	number   int
	method   string
	about    string // which item
	cfg      *config
	proxy    *proxy
	began    time.Time
	deadline time.Time
	ended    time.Time
	err      error
	cut      bool // the process ended
	done     chan struct{}
}

// took returns the duration of a call.
func (c *call) took() time.Duration { return c.ended.Sub(c.began) }

// client makes calls, one after another.
type client struct {
	*world
	rnd  *rand.Rand
	name string
	conn *transport.Client
}

// peerKey is the key of the context of a call that notes which process it goes to.
type peerKey struct{}

func began(ctx context.Context, to net.Addr) {
	if at, ok := ctx.Value(peerKey{}).(*net.Addr); ok {
		*at = to
	}
}

// long is kubelet's timeout for most calls.
const long = 2 * time.Minute

// do makes a call. It returns nil if there is no process to call.
func (c *client) do(method, about string, timeout time.Duration, f func(ctx context.Context, cfg *config, conn grpc.ClientConnInterface) error, judge func(*call)) *call {
	c.mu.Lock()
	if c.now == nil || c.ctx.Err() != nil {
		c.mu.Unlock()
		c.sleep(100 * time.Millisecond)
		return nil
	}
	c.calls++
	p := c.now
	one := &call{number: c.calls, method: method, about: about, cfg: p.cfg, proxy: p, began: time.Now(), deadline: time.Now().Add(timeout), done: make(chan struct{})}
	c.underWay[one] = struct{}{}
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(c.ctx, timeout)
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)()
	var to net.Addr
	one.err = f(context.WithValue(ctx, peerKey{}, &to), one.cfg, codec.Conn{Caller: c.conn})
	one.ended = time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if at, ok := to.(address); ok && at.link != nil && at.process != 0 && at.process != p.number && at.process <= len(c.processes) {
		one.proxy = c.processes[at.process-1] // one that hands over, or that has just taken over
	}
	delete(c.underWay, one)
	close(one.done)
	at, reached := to.(address)
	one.cut = p.ctx.Err() != nil || reached && at.broken() || !reached && one.err != nil
	if !reached && one.err != nil && one.ended.Before(one.deadline) && time.Since(c.cut) > 5*time.Second && time.Since(p.cfg.since) > 5*time.Second && c.now == p && p.ctx.Err() == nil {
		c.violated("%s: %s cannot reach process %d: %v", c.name, method, p.number, one.err)
	}
	c.meets(one)
	if one.err == nil {
		one.proxy.ok[method]++
	}
	if *verbose || one.err != nil && one.took() > 0 || one.took() > time.Second {
		c.trace("%s: %s %s, begun at %.3f, took %s: %v", c.name, method, about, one.began.Sub(c.world.began).Seconds(), one.took().Round(time.Millisecond), one.err)
	}
	if !one.cut && c.ctx.Err() == nil {
		judge(one)
	}
	return one
}

func full(method string) string {
	if method == "ListImages" || method == "ImageFsInfo" || method == "ImageStatus" {
		return "/runtime.v1.ImageService/" + method
	}
	return "/runtime.v1.RuntimeService/" + method
}

// shown is an item as a list shows it.
type shown struct {
	version, state int
	image          string
}

// filter is the filter of a list.
type filter struct {
	id, pod string // front names
	colour  string
	state   *int32
}

func (f filter) none() bool { return f == filter{} }

func (f filter) String() string {
	s := f.id + f.pod + f.colour
	if f.state != nil {
		s += " state " + strconv.Itoa(int(*f.state))
	}
	return s
}

func (f filter) request(k kind) proto.Message {
	var labels map[string]string
	if f.colour != "" {
		labels = map[string]string{"colour": f.colour}
	}
	if k == sandboxes {
		if f.none() {
			return &runtimeapi.ListPodSandboxRequest{}
		}
		r := &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{Id: f.id, LabelSelector: labels}}
		if f.state != nil {
			r.Filter.State = &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState(*f.state)}
		}
		return r
	}
	if f.none() {
		return &runtimeapi.ListContainersRequest{}
	}
	r := &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{Id: f.id, PodSandboxId: f.pod, LabelSelector: labels}}
	if f.state != nil {
		r.Filter.State = &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState(*f.state)}
	}
	return r
}

// list requests a list, and judges the answer.
func (c *client) list(k kind, stream bool, f filter, timeout time.Duration) map[string]shown {
	method := [2][2]string{{"ListPodSandbox", "StreamPodSandboxes"}, {"ListContainers", "StreamContainers"}}[k][0]
	if stream {
		method = [2]string{"StreamPodSandboxes", "StreamContainers"}[k]
	}
	answer := &codec.Frame{}
	var items map[string]shown
	one := c.do(method, f.String(), timeout, func(ctx context.Context, _ *config, conn grpc.ClientConnInterface) error {
		request, err := codec.FrameOf(f.request(k))
		if err != nil {
			return err
		}
		if !stream {
			return conn.Invoke(ctx, full(method), request, answer)
		}
		answer, err = receiveAll(ctx, conn, full(method), request)
		return err
	}, func(one *call) {
		if one.err == nil {
			items = map[string]shown{}
			err := read(k, answer.Bytes(), items)
			if err != nil && f.id+f.pod != "" && c.backendOf(one, f).latin(one) {
				return // it is the unchanged answer of one runtime
			}
			if err != nil {
				c.violated("call %d: %s(%s) of %s is malformed: %v", one.number, method, f, c.name, err)
				return
			}
		}
		c.judgeList(one, k, f, items)
	})
	if one == nil {
		return nil
	}
	return items
}

func receiveAll(ctx context.Context, conn grpc.ClientConnInterface, method string, request *codec.Frame) (*codec.Frame, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := codec.CallerOf(conn).Open(ctx, &grpc.StreamDesc{ServerStreams: true}, method, request)
	if err != nil {
		return nil, err
	}
	var parts []*codec.Frame
	for {
		f, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return codec.Concat(parts), nil
		}
		if err != nil {
			return nil, err
		}
		parts = append(parts, f)
	}
}

func read(k kind, reply []byte, items map[string]shown) error {
	if k == sandboxes {
		m := &runtimeapi.ListPodSandboxResponse{}
		if err := proto.Unmarshal(reply, m); err != nil {
			return err
		}
		for _, i := range m.Items {
			items[i.Id] = shown{version: number(i.Annotations), state: int(i.State)}
		}
		return nil
	}
	m := &runtimeapi.ListContainersResponse{}
	if err := proto.Unmarshal(reply, m); err != nil {
		return err
	}
	for _, i := range m.Containers {
		items[i.Id] = shown{number(i.Annotations), int(i.State), i.GetImage().GetImage()}
	}
	return nil
}

func number(annotations map[string]string) int {
	n, err := strconv.Atoi(annotations["version"])
	if err != nil {
		return -1
	}
	return n
}

// statusOf asks for the status of an item, by its front name.
func (c *client) statusOf(k kind, front string, timeout time.Duration) {
	method := [2]string{"PodSandboxStatus", "ContainerStatus"}[k]
	sandbox, container := &runtimeapi.PodSandboxStatusResponse{}, &runtimeapi.ContainerStatusResponse{}
	c.do(method, front, timeout, func(ctx context.Context, _ *config, conn grpc.ClientConnInterface) error {
		if k == sandboxes {
			return conn.Invoke(ctx, full(method), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: front}, sandbox)
		}
		return conn.Invoke(ctx, full(method), &runtimeapi.ContainerStatusRequest{ContainerId: front}, container)
	}, func(one *call) {
		version := -1
		switch {
		case one.err != nil:
		case k == sandboxes:
			version = number(sandbox.GetStatus().GetAnnotations())
		default:
			version = number(container.GetStatus().GetAnnotations())
		}
		c.judgeStatus(one, k, front, version, container.GetStatus().GetImage().GetImage())
	})
}

// change makes a mutating call, or one that must not be repeated.
func (c *client) change(method, front string, request proto.Message, timeout time.Duration) (reply []byte, one *call) {
	answer := &codec.Frame{}
	c.mu.Lock()
	c.tokens++
	token := fmt.Sprint(method, " ", c.tokens)
	c.mu.Unlock()
	one = c.do(method, front, timeout, func(ctx context.Context, _ *config, conn grpc.ClientConnInterface) error {
		return conn.Invoke(metadata.AppendToOutgoingContext(ctx, "token", token), full(method), request, answer)
	}, func(one *call) {
		c.judgeChange(one, front, token, answer.Bytes())
		if create, ok := request.(*runtimeapi.CreateContainerRequest); ok && one.err == nil && c.wrong == "" {
			at, id := one.cfg.locate(decode(answer.Bytes(), &runtimeapi.CreateContainerResponse{}).ContainerId)
			if i := one.cfg.backends[at].runtime.item(containers, id); i != nil {
				i.wrote, i.writtenTo = create.GetConfig().GetImage().GetImage(), one.cfg.place(at)
			}
		}
	})
	return answer.Bytes(), one
}

// kubelet lists as kubelet's PLEG does, and requests statuses.
func (c *client) kubelet() {
	var seen [2]map[string]shown
	stream := c.rnd.IntN(3) == 0
	for c.sleep(time.Second) {
		for k := range kind(2) {
			items := c.list(k, stream, filter{}, long)
			if items == nil {
				break
			}
			for _, front := range slices.Sorted(maps.Keys(items)) {
				now := items[front]
				if before, ok := seen[k][front]; !ok || before != now || c.rnd.IntN(40) == 0 {
					c.group.Go(func() { c.statusOf(k, front, long) })
				}
			}
			seen[k] = items
		}
	}
}

// reader lists with filters, and with random deadlines.
func (c *client) reader() {
	for c.sleep(time.Duration(c.rnd.Int64N(int64(4 * time.Second)))) {
		k := kind(c.rnd.IntN(2))
		front := c.pick(k)
		f := filter{}
		switch c.rnd.IntN(6) {
		case 0:
			f.id = front
		case 1:
			f.colour = []string{"red", "blue"}[c.rnd.IntN(2)]
		case 2:
			s := int32(c.rnd.IntN(2))
			f.state = &s
		case 3:
			if k == containers {
				f.pod = c.pick(sandboxes)
			}
		case 4:
			c.statusOf(k, front, c.hurry())
			continue
		}
		c.list(k, c.rnd.IntN(3) == 0, f, c.hurry())
	}
}

func (c *client) hurry() time.Duration {
	if c.rnd.IntN(2) == 0 {
		return long
	}
	return 100*time.Millisecond + time.Duration(c.rnd.Int64N(int64(10*time.Second)))
}

// pick returns the front name of a random item.
func (c *client) pick(k kind) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now == nil {
		return "x"
	}
	cfg := c.now.cfg
	i := c.rnd.IntN(len(cfg.backends))
	var there []*item
	for _, one := range cfg.backends[i].runtime.items[k] {
		if one.removed.IsZero() || c.rnd.IntN(20) == 0 {
			there = append(there, one)
		}
	}
	if len(there) == 0 {
		return cfg.front(i, "nothing")
	}
	return cfg.front(i, there[c.rnd.IntN(len(there))].id)
}

// writer creates, stops and removes pods, in bursts.
func (c *client) writer() {
	for c.sleep(time.Duration(c.rnd.Int64N(int64(20 * time.Second)))) {
		for range 1 + c.rnd.IntN(6) {
			if !c.sleep(time.Duration(c.rnd.Int64N(int64(2 * time.Second)))) {
				return
			}
			timeout := 2 * long
			if c.rnd.IntN(4) == 0 {
				timeout = c.hurry()
			}
			sandbox, container := c.pick(sandboxes), c.pick(containers)
			labels := map[string]string{"colour": []string{"red", "blue"}[c.rnd.IntN(2)], "app": "x"}
			annotations := map[string]string{"version": "0"} // the runtime lists the pod with the same version
			switch c.rnd.IntN(8) {
			case 0:
				// The annotation names its runtime; without one it belongs to the primary.
				annotations["kubernetes.io/target-runtime"] = c.someBackend()
				c.change("RunPodSandbox", "", &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{Labels: labels, Annotations: annotations}}, timeout)
			case 1, 2:
				c.change("CreateContainer", sandbox, &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox, Config: &runtimeapi.ContainerConfig{
					Labels: labels, Annotations: annotations, Image: &runtimeapi.ImageSpec{Image: c.image(sandbox)},
				}}, timeout)
			case 3:
				c.change("StartContainer", container, &runtimeapi.StartContainerRequest{ContainerId: container}, timeout)
			case 4:
				c.change("StopContainer", container, &runtimeapi.StopContainerRequest{ContainerId: container}, timeout)
			case 5:
				c.change("RemoveContainer", container, &runtimeapi.RemoveContainerRequest{ContainerId: container}, timeout)
			case 6:
				c.change("StopPodSandbox", sandbox, &runtimeapi.StopPodSandboxRequest{PodSandboxId: sandbox}, timeout)
			case 7:
				if c.rnd.IntN(3) == 0 {
					c.change("RemovePodSandbox", sandbox, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sandbox}, timeout)
				}
			}
		}
	}
}

// image returns the name of an image for a sandbox, with the prefix of its runtime or without.
func (c *client) image(sandbox string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now != nil && c.rnd.IntN(2) == 0 {
		if i, _ := c.now.cfg.locate(sandbox); i > 0 {
			return c.now.cfg.backends[i].name + "/app:1"
		}
	}
	return "app:1"
}

func (c *client) someBackend() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now == nil {
		return ""
	}
	all := c.now.cfg.backends
	return all[c.rnd.IntN(len(all))].name
}

// prober runs commands in containers, as the probes of kubelet do.
func (c *client) prober() {
	for c.sleep(time.Duration(c.rnd.Int64N(int64(5 * time.Second)))) {
		front := c.pick(containers)
		c.group.Go(func() { c.change("ExecSync", front, &runtimeapi.ExecSyncRequest{ContainerId: front}, long+time.Second) })
	}
}

// gauger makes the calls whose answers are merged from those of all runtimes.
func (c *client) gauger() {
	for c.sleep(time.Duration(c.rnd.Int64N(int64(6 * time.Second)))) {
		method := []string{"Status", "ImageFsInfo", "ListContainerStats", "ListMetricDescriptors", "ListImages"}[c.rnd.IntN(5)]
		c.do(method, "", long, func(ctx context.Context, _ *config, conn grpc.ClientConnInterface) error {
			return conn.Invoke(ctx, full(method), &codec.Frame{}, &codec.Frame{})
		}, c.judgeMerged)
	}
}

// sloth asks for events, and does not read them.
func (c *client) sloth() {
	for c.sleep(time.Duration(c.rnd.Int64N(int64(time.Minute)))) {
		ctx, cancel := context.WithTimeout(c.ctx, time.Duration(c.rnd.Int64N(int64(5*time.Minute))))
		if _, err := c.conn.Open(ctx, &grpc.StreamDesc{ServerStreams: true}, eventsMethod, &codec.Frame{}); err == nil {
			<-ctx.Done()
		}
		cancel()
	}
}
