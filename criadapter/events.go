package criadapter

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/base/recovery"
)

// events is the [director.Resync] of GetContainerEvents. It belongs to one member of one client's stream, which calls one
// method at a time.
//
// It holds the pods and containers of one runtime as the client knows them, from the runtime's events, or from events that
// criproxy made of the difference between the runtime's lists. That may be older than any cache: only what was sent counts.
//
// When the stream ends kubelet falls back from evented PLEG, after the fifth end for good. So a
// runtime that has no events, or goes away and comes back, must not end the stream of all
// runtimes.
type events struct {
	polls *polls
	known *snapshot // what the client knows; criproxy takes it for what it has sent
}

// newEvents returns a function that makes the resyncs of all clients.
func newEvents(panics recovery.Hook) func() director.Resync {
	l := newPolls(panics)
	return func() director.Resync { return &events{l, newSnapshot()} }
}

// errStale is the error of a list or status from the cache. It may be older than the latest event, so it shows no change.
var errStale = errors.New("the runtime did not answer, and what is cached may be stale")

// Begin implements [director.Resync].
func (e *events) Begin(ctx context.Context, conn grpc.ClientConnInterface) error {
	now, _, err := e.polls.list(ctx, conn)
	if err == nil {
		e.known = now
	}
	return err
}

// Look implements [director.Resync].
func (e *events) Look(ctx context.Context, conn grpc.ClientConnInterface) ([]*codec.Frame, error) {
	now, cached, err := e.polls.list(ctx, conn)
	if err == nil && cached {
		err = errStale
	}
	if err != nil {
		return nil, err
	}
	d := newDifference(ctx, conn, e.known, now)
	err = d.find()
	e.known = now
	return d.events, err
}

// End implements [director.Resync].
func (e *events) End() []*codec.Frame {
	d := newDifference(context.Background(), nil, e.known, newSnapshot())
	_ = d.find() // cannot fail: without a connection it asks for no status
	e.known = d.now
	return d.events
}

// Saw implements [director.Resync]. It refuses an event that kubelet could not decode, because that
// would end kubelet's stream.
func (e *events) Saw(message *codec.Frame) error {
	var event runtimeapi.ContainerEventResponse
	if err := proto.Unmarshal(message.Bytes(), &event); err != nil {
		return fmt.Errorf("an event that cannot be decoded: %w", err)
	}
	id, what := event.GetContainerId(), event.GetContainerEventType()
	sandbox := event.GetPodSandboxStatus().GetId()
	_, isPod := e.known.pods[id]
	isPod = isPod || id == sandbox
	switch {
	case isPod && what == deleted:
		delete(e.known.pods, id)
	case isPod:
		p := e.known.pods[id]
		if what == stopped {
			p.state = podNotReady
		}
		status, found, err := eventPod.Lookup(message.Bytes())
		if err != nil {
			return err
		}
		if found {
			p.status = append([]byte(nil), status...)
		}
		e.known.pods[id] = p
	case what == deleted:
		delete(e.known.containers, id)
	default:
		c := e.known.containers[id]
		if sandbox != "" {
			c.pod = sandbox
		}
		switch what {
		case started:
			c.state = max(c.state, running) // the event may be late
		case stopped:
			c.state = max(c.state, exited)
		}
		e.known.containers[id] = c
	}
	return nil
}
