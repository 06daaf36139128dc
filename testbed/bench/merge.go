package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/director"
)

// merging measures the CPU time that the director spends on each container of a list that it merges and rewrites. It
// does so in this process, from frame to frame, without the costs that are the same for each call.
func (h *harness) merging(ctx context.Context, r *report) error {
	fmt.Fprintln(h.progress, "merging without sockets")
	sizes := []int{100, 1000, 10000}
	var lists []func() error
	for _, n := range sizes {
		list, err := h.merged(ctx, n)
		if err != nil {
			return err
		}
		lists = append(lists, list)
	}
	costs := make([]float64, len(sizes)) // the lowest of several turns: disturbances only add
	for range h.rounds * 3 {
		for i, n := range sizes {
			calls := 200_000 / n
			begin := time.Now()
			for range calls {
				if err := lists[i](); err != nil {
					return err
				}
			}
			cost := time.Since(begin).Seconds() / float64(calls*n)
			if costs[i] == 0 || cost < costs[i] {
				costs[i] = cost
			}
		}
	}
	t := atMost("the same of merging and rewriting alone, without sockets", 1.2, slices.Max(costs)/slices.Min(costs))
	t.Got += fmt.Sprintf(" (%.0f to %.0f ns)", slices.Min(costs)*1e9, slices.Max(costs)*1e9)
	r.alone = append(r.alone, t)
	return nil
}

// merged returns a function that gets a list of n containers of two runtimes.
func (h *harness) merged(ctx context.Context, n int) (func() error, error) {
	cfg, err := criadapter.Config(criadapter.Options{})
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"", "two.test"} {
		f, err := codec.FrameOf(listOf("left"+name, n/2))
		if err != nil {
			return nil, err
		}
		cfg.Backends = append(cfg.Backends, director.Backend{Name: name, Conn: ready{reply: f}})
	}
	d, err := director.New(cfg)
	if err != nil {
		return nil, err
	}
	return func() error {
		var reply codec.Frame
		defer reply.Free()
		if err := d.Invoke(ctx, runtimeapi.RuntimeService_ListContainers_FullMethodName, &codec.Frame{}, &reply); err != nil {
			return err
		}
		return work{bytes: n * 800}.check(&reply)
	}, nil
}

// ready is a connection to a runtime whose answer is already there.
type ready struct {
	grpc.ClientConnInterface
	reply *codec.Frame
}

func (c ready) Invoke(_ context.Context, _ string, _, reply any, _ ...grpc.CallOption) error {
	return codec.Decode(reply, c.reply.Ref())
}
