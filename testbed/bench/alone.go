package main

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
)

// alone measures features that only criproxy has. It runs the measurements whose names match.
func (h *harness) alone(ctx context.Context, r *report, only *regexp.Regexp) error {
	starts, memory := only.MatchString("cold start"), only.MatchString("memory")
	if !starts && !memory {
		return nil
	}
	info, err := os.Stat(h.program)
	if err != nil {
		return err
	}
	r.alone = append(r.alone, mebibytes("stripped binary", 30, info.Size()))
	var backends []string
	for _, name := range []string{"left", "two"} {
		b, err := h.startBackend(ctx, name, 200)
		if err != nil {
			return err
		}
		defer b.stop()
		backends = append(backends, b.socket)
	}
	c := called(two)
	c.command = criproxy() // with its defaults, including the flight recorder
	if starts {
		fmt.Fprintln(h.progress, "cold starts")
		if err := h.coldStart(ctx, r, c, backends); err != nil {
			return err
		}
	}
	if !memory {
		return nil
	}
	p, err := h.startContender(ctx, c, "", backends)
	if err != nil {
		return err
	}
	defer p.stop()
	time.Sleep(10 * time.Second) // idle
	idle, err := memoryOf(p.cmd.Process.Pid)
	if err != nil {
		return err
	}
	t := mebibytes("memory, idle, 2 runtimes with 200 containers each", 26, idle.now)
	t.Got += fmt.Sprintf(" (%.1f without pages of files)", float64(idle.own)/(1<<20))
	r.alone = append(r.alone, t)
	const calls = 100_000
	fmt.Fprintf(h.progress, "%d lists of 400\n", calls)
	if err := h.lists(ctx, p, calls); err != nil {
		return err
	}
	after, err := memoryOf(p.cmd.Process.Pid)
	if err != nil {
		return err
	}
	t = mebibytes("memory, after 100,000 lists of 400", 25, after.now)
	t.Got += fmt.Sprintf(" (at most %.1f)", float64(after.peak)/(1<<20))
	r.alone = append(r.alone, t)
	return nil
}

func mebibytes(what string, limit float64, got int64) target {
	n := float64(got) / (1 << 20)
	return target{What: what, Want: fmt.Sprintf("≤ %g MiB", limit), Got: fmt.Sprintf("%.1f MiB", n), Met: n <= limit}
}

// coldStart measures how long it takes from the start of the process to the first reply.
func (h *harness) coldStart(ctx context.Context, r *report, c contender, backends []string) error {
	var took []float64
	for range 20 {
		begin := time.Now()
		p, err := h.startContender(ctx, c, "", backends)
		if err != nil {
			return err
		}
		cc, err := client(p.socket)
		if err != nil {
			return err
		}
		err = cc.Invoke(ctx, runtimeapi.RuntimeService_ListPodSandbox_FullMethodName, codec.NewFrame(nil), &codec.Frame{})
		took = append(took, float64(time.Since(begin).Microseconds())/1000)
		_ = cc.Close() // no call is under way
		p.stop()
		if err != nil {
			return fmt.Errorf("the first call after a start: %w", err)
		}
	}
	got := median(took)
	r.alone = append(r.alone, target{What: "cold start to first reply, runtimes being up", Want: "≤ 50 ms", Got: fmt.Sprintf("%.0f ms", got), Met: got <= 50})
	return nil
}

// lists makes a number of calls, a few at once.
func (h *harness) lists(ctx context.Context, p *running, calls int) error {
	request, err := proto.Marshal(&runtimeapi.ListContainersRequest{})
	if err != nil {
		return err
	}
	cc, err := client(p.socket)
	if err != nil {
		return err
	}
	defer cc.Close()
	do := unary(ctx, cc, work{method: runtimeapi.RuntimeService_ListContainers_FullMethodName, bytes: 400 * 800}, request)
	const clients = 4
	var errs [clients]error
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			for n := 0; n < calls/clients && errs[i] == nil; n++ {
				errs[i] = do()
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
