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

// events is the [director.Resync] of GetContainerEvents. It holds the pods and containers of one
// runtime as one client knows them: from the runtime's events, or from events that criproxy made of
// the difference between the runtime's lists.
//
// When the stream ends kubelet falls back from evented PLEG, after the fifth end for good. So a
// runtime that has no events, or goes away and comes back, must not end the stream of all
// runtimes.
type events struct {
	polls *polls
	seen  *snapshot
}

// newEvents returns a function that makes the resyncs of all clients.
func newEvents(panics recovery.Hook) func() director.Resync {
	l := newPolls(panics)
	return func() director.Resync { return &events{l, newSnapshot()} }
}

// errRemembered is the error of a list from memory, which is older than the latest event.
var errRemembered = errors.New("the runtime did not answer, and memory has no news")

// Begin implements [director.Resync].
func (e *events) Begin(ctx context.Context, conn grpc.ClientConnInterface) error {
	now, _, err := e.polls.list(ctx, conn)
	if err == nil {
		e.seen = now
	}
	return err
}

// Look implements [director.Resync].
func (e *events) Look(ctx context.Context, conn grpc.ClientConnInterface) ([]*codec.Frame, error) {
	now, remembered, err := e.polls.list(ctx, conn)
	if err == nil && remembered {
		err = errRemembered
	}
	if err != nil {
		return nil, err
	}
	d := newDifference(ctx, conn, e.seen, now)
	err = d.find()
	e.seen = now
	return d.events, err
}

// End implements [director.Resync].
func (e *events) End() []*codec.Frame {
	d := newDifference(context.Background(), nil, e.seen, newSnapshot())
	_ = d.find() // cannot fail: without a connection it asks for no status
	e.seen = d.now
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
	_, isPod := e.seen.pods[id]
	isPod = isPod || id == sandbox
	switch {
	case isPod && what == deleted:
		delete(e.seen.pods, id)
	case isPod:
		p := e.seen.pods[id]
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
		e.seen.pods[id] = p
	case what == deleted:
		delete(e.seen.containers, id)
	default:
		c := e.seen.containers[id]
		if sandbox != "" {
			c.pod = sandbox
		}
		switch what {
		case started:
			c.state = max(c.state, running) // the event may be late
		case stopped:
			c.state = max(c.state, exited)
		}
		e.seen.containers[id] = c
	}
	return nil
}
