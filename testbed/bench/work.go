package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
)

// A work is a task that clients repeat.
type work struct {
	name    string
	clients int // at once, on one connection, like kubelet's
	node    node
	method  string
	every   time.Duration // interval between a client's calls; zero: without a pause
	// request returns the request. For a contender with two backends it is about a container of the second.
	request func(c contender) proto.Message
	stream  bool // the work is one stream, whose messages count as calls
	bytes   int  // a correct reply has at least so many bytes
}

// A node says what the backends hold.
type node struct {
	containers int
	events     bool // the stream of events never pauses
	// encoded: the backend encodes each list and the client decodes it, as real ones do.
	encoded bool
}

// flags returns the flags of a backend.
func (n node) flags() []string {
	return []string{fmt.Sprintf("-events=%t", n.events), fmt.Sprintf("-encode=%t", n.encoded)}
}

func aboutOne(c contender) string {
	switch {
	case c.two && c.name != native:
		return "two.test__" + containerID("two", 0)
	case c.two:
		return containerID("two", 0)
	}
	return containerID("one", 0)
}

// works are all works, grouped by the nodes that they need.
func works() []work {
	status := func(c contender) proto.Message { return &runtimeapi.ContainerStatusRequest{ContainerId: aboutOne(c)} }
	list := func(contender) proto.Message { return &runtimeapi.ListContainersRequest{} }
	var all []work
	for _, n := range []int{1, 16, 64} {
		all = append(all, work{name: fmt.Sprintf("status, %d at once", n), clients: n, node: node{containers: 100},
			method: runtimeapi.RuntimeService_ContainerStatus_FullMethodName, request: status, bytes: 500})
	}
	// At the rate of a kubelet, with its pauses, after which caches are cold.
	all = append(all, work{name: "status, 20 a second", clients: 1, node: node{containers: 100}, every: 50 * time.Millisecond,
		method: runtimeapi.RuntimeService_ContainerStatus_FullMethodName, request: status, bytes: 500})
	all = append(all, work{name: "exec with 15 MiB of output", clients: 1, node: node{containers: 100},
		method:  runtimeapi.RuntimeService_ExecSync_FullMethodName,
		request: func(c contender) proto.Message { return &runtimeapi.ExecSyncRequest{ContainerId: aboutOne(c)} }, bytes: bigOutput})
	for _, n := range []int{100, 400, 800, 1000, 10000} {
		all = append(all, work{name: fmt.Sprintf("list of %d", n), clients: 1, node: node{containers: n},
			method: runtimeapi.RuntimeService_ListContainers_FullMethodName, request: list, bytes: n * 800})
	}
	all = append(all, work{name: "list of 800, encoded and decoded", clients: 1, node: node{containers: 800, encoded: true},
		method: runtimeapi.RuntimeService_ListContainers_FullMethodName, request: list, bytes: 800 * 800})
	return append(all, work{name: "events", clients: 1, node: node{containers: 1, events: true}, method: runtimeapi.RuntimeService_GetContainerEvents_FullMethodName,
		request: func(contender) proto.Message { return &runtimeapi.GetEventsRequest{} }, stream: true, bytes: 500})
}

// A turn holds the measurements of one turn of a contender.
type turn struct {
	took  []time.Duration // durations of the calls, sorted; of a stream, the times between messages
	wall  time.Duration
	usage usage // of the proxy
}

func (t turn) quantile(q float64) time.Duration {
	if len(t.took) == 0 {
		return 0
	}
	return t.took[min(len(t.took)-1, int(q*float64(len(t.took))))]
}

// client returns a connection for frames, configured like kubelet's.
func client(socket string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec.Raw), grpc.MaxCallRecvMsgSize(16<<20)))
}

// turn runs w for a while.
func (h *harness) turn(ctx context.Context, w work, r *running, cc *grpc.ClientConn, long time.Duration) (turn, error) {
	request, err := proto.Marshal(w.request(r.contender))
	if err != nil {
		return turn{}, err
	}
	var before usage
	if r.cmd != nil {
		if before, err = usageOf(r.cmd.Process.Pid); err != nil {
			return turn{}, err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	begin := time.Now()
	end := begin.Add(long)
	took := make([][]time.Duration, w.clients)
	errs := make([]error, w.clients)
	var wg sync.WaitGroup
	for i := range w.clients {
		wg.Go(func() {
			do := unary(ctx, cc, w, request)
			if w.stream {
				do, errs[i] = streamed(ctx, cc, w, request)
			}
			for last := time.Now(); errs[i] == nil && last.Before(end); {
				errs[i] = do()
				now := time.Now()
				took[i] = append(took[i], now.Sub(last))
				if w.every > 0 {
					time.Sleep(time.Until(last.Add(w.every)))
					now = time.Now()
				}
				last = now
			}
		})
	}
	wg.Wait()
	t := turn{took: slices.Concat(took...), wall: time.Since(begin)}
	slices.Sort(t.took)
	if err := errors.Join(errs...); err != nil {
		return t, fmt.Errorf("%s through %s: %w", w.name, r.name, err)
	}
	if r.cmd != nil {
		after, err := usageOf(r.cmd.Process.Pid)
		if err != nil {
			return t, fmt.Errorf("%s through %s: %w", w.name, r.name, err)
		}
		t.usage = after.minus(before)
	}
	return t, nil
}

func unary(ctx context.Context, cc *grpc.ClientConn, w work, request []byte) func() error {
	return func() error {
		var reply codec.Frame
		if err := cc.Invoke(ctx, w.method, codec.NewFrame(request), &reply); err != nil {
			return err
		}
		defer reply.Free()
		if w.node.encoded {
			if err := proto.Unmarshal(reply.Bytes(), &runtimeapi.ListContainersResponse{}); err != nil {
				return err
			}
		}
		return w.check(&reply)
	}
}

func streamed(ctx context.Context, cc *grpc.ClientConn, w work, request []byte) (func() error, error) {
	cs, err := cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, w.method)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(cs.SendMsg(codec.NewFrame(request)), cs.CloseSend()); err != nil {
		return nil, err
	}
	return func() error {
		var reply codec.Frame
		if err := cs.RecvMsg(&reply); err != nil {
			return err
		}
		defer reply.Free()
		return w.check(&reply)
	}, nil
}

func (w work) check(reply *codec.Frame) error {
	if reply.Len() < w.bytes {
		return fmt.Errorf("a reply of %d bytes, want at least %d", reply.Len(), w.bytes)
	}
	return nil
}
