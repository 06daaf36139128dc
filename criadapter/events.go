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
	"github.com/criproxy/criproxy/internal/recovery"
)

// events is the recap of GetContainerEvents. It holds the pods and containers
// of one runtime as one client has seen them, in the runtime's events or in those that criproxy
// makes of the difference between its lists.
//
// When the stream ends kubelet gives up evented PLEG, and after the fifth end in its life for
// good. So a runtime that has no events, or goes away and comes back, must not end the stream of
// all.
type events struct {
	looks *looks
	seen  *snapshot
}

// newEvents returns what makes the recaps of all clients.
func newEvents(panics recovery.Hook) func() director.Recap {
	l := newLooks(panics)
	return func() director.Recap { return &events{l, newSnapshot()} }
}

// errRemembered is the error of a list from memory, which is older than the latest event.
var errRemembered = errors.New("the runtime did not answer, and memory has no news")

// Begin is for the director.
func (e *events) Begin(ctx context.Context, conn grpc.ClientConnInterface) error {
	now, _, err := e.looks.list(ctx, conn)
	if err == nil {
		e.seen = now
	}
	return err
}

// Look is for the director.
func (e *events) Look(ctx context.Context, conn grpc.ClientConnInterface) ([]*codec.Frame, error) {
	now, remembered, err := e.looks.list(ctx, conn)
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

// End is for the director.
func (e *events) End() []*codec.Frame {
	d := newDifference(context.Background(), nil, e.seen, newSnapshot())
	_ = d.find() // it asks nothing about what is gone
	e.seen = d.now
	return d.events
}

// Saw is for the director. An event that kubelet could not decode would end its stream.
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
			c.state = max(c.state, running) // it may be late
		case stopped:
			c.state = max(c.state, exited)
		}
		e.seen.containers[id] = c
	}
	return nil
}
