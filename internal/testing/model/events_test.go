package model

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
)

const eventsMethod = "/runtime.v1.RuntimeService/GetContainerEvents"

// watcher follows the events of all runtimes, as an evented PLEG does.
type watcher struct {
	proxy *proxy    // whose stream is open
	since time.Time // when it was opened

	// events is the time of the latest event of a container, by its front name.
	events map[string]time.Time
	// judged is the latest version of a container that has been checked for an event.
	judged map[*item]int
}

// watch reopens the stream when the process has ended. A stream that ends earlier is a violation.
func (c *client) watch() {
	for c.sleep(100 * time.Millisecond) {
		c.mu.Lock()
		p := c.now
		c.mu.Unlock()
		if p == nil {
			continue
		}
		err := c.follow(p)
		c.mu.Lock()
		c.watcher = watcher{}
		if p.ctx.Err() == nil && c.now == p && c.ctx.Err() == nil && time.Since(c.cut) > time.Second {
			c.violated("the events of process %d have ended: %v", p.number, err)
		}
		c.mu.Unlock()
	}
}

func (c *client) follow(p *proxy) error {
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)()
	c.group.Go(func() { // as a client does after GOAWAY
		for c.sleep(time.Second) && ctx.Err() == nil {
			c.mu.Lock()
			another := c.now != p
			c.mu.Unlock()
			if another {
				cancel()
			}
		}
	})
	s, err := c.conn.Open(ctx, &grpc.StreamDesc{ServerStreams: true}, eventsMethod, &codec.Frame{})
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.watcher = watcher{proxy: p, since: time.Now(), events: map[string]time.Time{}, judged: map[*item]int{}}
	c.mu.Unlock()
	for {
		f, err := s.Recv()
		if err != nil {
			return err
		}
		event := decode(f.Bytes(), &runtimeapi.ContainerEventResponse{})
		c.mu.Lock()
		if c.watcher.events != nil {
			c.watcher.events[event.ContainerId] = time.Now()
		}
		c.mu.Unlock()
	}
}

// patience is how long an event of a healthy runtime may take.
const patience = 20 * time.Second

// judgeEvents reports containers that changed without an event. mu is held.
func (w *world) judgeEvents() {
	p := w.watcher.proxy
	if p == nil || p != w.now {
		return
	}
	for at := range p.cfg.backends {
		b := &p.cfg.backends[at]
		for _, i := range b.runtime.items[containers] {
			n := len(i.versions) - 1
			v := i.versions[n]
			if n == 0 || w.watcher.judged[i] == n || !i.removed.IsZero() || time.Since(v.at) < patience || v.at.Sub(w.watcher.since) < settled {
				continue
			}
			w.watcher.judged[i] = n
			c := &call{cfg: p.cfg, proxy: p, began: v.at, ended: v.at.Add(patience), deadline: v.at.Add(patience)}
			if !b.fast(c) || b.latin(c) {
				continue
			}
			if front := p.cfg.front(at, i.id); w.watcher.events[front].Before(v.at) {
				w.violated("no event of process %d says that %s changed at %.3f", p.number, front, v.at.Sub(w.began).Seconds())
			}
		}
	}
}

// eventStream is the stream of events of a runtime.
type eventStream struct {
	ctx    context.Context
	wire   *wire
	method string
	epoch  chan struct{}
	seen   int // how many events of the runtime it has had
}

// next waits for the next event. Bad weather ends the stream with its code.
func (s *eventStream) next() ([]byte, error) {
	r := s.wire.runtime
	for {
		r.world.mu.Lock()
		if s.epoch == nil {
			if err := s.wire.reach(); err != nil {
				r.world.mu.Unlock()
				return nil, err
			}
			s.epoch, s.seen = r.epoch, len(r.news)
		}
		p, turn, more, has := *r.now(), r.turn, r.more, s.wire.has(s.method)
		var event []byte
		if s.seen < len(r.news) && !p.frozen {
			event = r.news[s.seen]
			s.seen++
		}
		r.world.mu.Unlock()
		switch {
		case p.code != 0:
			return nil, status.Errorf(p.code, "the weather is bad")
		case !has:
			return nil, status.Errorf(codes.Unimplemented, "no events here")
		case event != nil:
			return event, nil
		}
		select {
		case <-s.ctx.Done():
			return nil, status.FromContextError(s.ctx.Err()).Err()
		case <-s.epoch:
			return nil, &unreachable{"connection reset by peer"}
		case <-turn:
		case <-more:
		}
	}
}

// happened adds an event for a change of a container. world.mu is held.
func (r *runtime) happened(i *item) {
	if i.kind != containers {
		return
	}
	what := map[int32]runtimeapi.ContainerEventType{made: runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT,
		running: runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, exited: runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT}[i.state()]
	if !i.removed.IsZero() {
		what = runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT
	}
	event := &runtimeapi.ContainerEventResponse{ContainerId: i.id, ContainerEventType: what, CreatedAt: time.Now().UnixNano()}
	if pod := r.find(sandboxes, i.pod); pod != nil {
		event.PodSandboxStatus = &runtimeapi.PodSandboxStatus{Id: pod.id, State: runtimeapi.PodSandboxState(pod.state()), Metadata: &runtimeapi.PodSandboxMetadata{Name: pod.id, Uid: "uid-" + pod.id, Namespace: "default"}}
	}
	data, err := proto.Marshal(event)
	r.world.must(err)
	r.news = append(r.news, data)
	close(r.more)
	r.more = make(chan struct{})
}
