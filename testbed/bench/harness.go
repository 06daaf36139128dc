package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
)

// A harness runs the measurements.
type harness struct {
	options
	dir      string
	program  string // criproxy
	koord    string // KoordRuntimeProxy; empty until it is built
	progress io.Writer
	started  int // number of started processes, for the names of folders
}

// all measures every work with every contender. If it fails, the report has what was measured until then.
func (h *harness) all(ctx context.Context) (*report, error) {
	r := &report{rounds: h.rounds, time: h.time, whole: h.among == ""}
	if err := h.findCriproxy(ctx); err != nil {
		return r, err
	}
	among, err := regexp.Compile(h.among)
	if err != nil {
		return r, fmt.Errorf("-among: %w", err)
	}
	only, err := regexp.Compile(h.only)
	if err != nil {
		return r, fmt.Errorf("-only: %w", err)
	}
	var present []contender
	for _, c := range contenders {
		if !among.MatchString(c.name) {
			continue
		}
		if lacks := h.missing(ctx, c); lacks != "" {
			r.leaveOut(h.progress, c.name, lacks)
			continue
		}
		present = append(present, c)
	}
	groups := map[node][]work{}
	var order []node
	for _, w := range works() {
		if only.MatchString(w.name) {
			if groups[w.node] == nil {
				order = append(order, w.node)
			}
			groups[w.node] = append(groups[w.node], w)
		}
	}
	for _, n := range order {
		if err := h.group(ctx, r, n, groups[n], present); err != nil {
			return r, err
		}
	}
	if h.among != "" {
		return r, nil
	}
	if only.MatchString("merging") {
		if err := h.merging(ctx, r); err != nil {
			return r, err
		}
	}
	if err := h.alone(ctx, r, only); err != nil {
		return r, err
	}
	if only.MatchString("a real kubelet") {
		if err := h.kubelet(ctx, r); err != nil {
			return r, err
		}
	}
	return r, nil
}

// findCriproxy builds the criproxy of this checkout as it is released.
func (h *harness) findCriproxy(ctx context.Context) error {
	if h.program = h.criproxy; h.program != "" {
		return nil
	}
	fmt.Fprintln(h.progress, "building criproxy")
	h.program = filepath.Join(h.dir, "linux-"+runtime.GOARCH, "criproxy")
	build := exec.CommandContext(ctx, "make", "DIST="+h.dir, h.program)
	build.Dir = ".."
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("building criproxy (run this in the folder testbed, or use -criproxy): %w\n%s", err, out)
	}
	return nil
}

// group measures works that need the same node.
func (h *harness) group(ctx context.Context, r *report, node node, ws []work, contenders []contender) error {
	var backends [3]string // one with all containers, and two with half of them each
	for i, name := range []string{"one", "left", "two"} {
		n := node.containers
		if i > 0 {
			n -= n / 2
		}
		b, err := h.startBackend(ctx, name, n, node.flags()...)
		if err != nil {
			return err
		}
		defer b.stop()
		backends[i] = b.socket
	}
	var up []*running
	conns := map[*running]*grpc.ClientConn{}
	for _, c := range contenders {
		if c.two && ws[0].stream {
			continue // it would read the flood itself all the time
		}
		behind := backends[:1]
		if c.two {
			behind = backends[1:]
		}
		p, err := h.startContender(ctx, c, "", behind)
		if err != nil {
			return err
		}
		defer p.stop()
		cc, err := client(p.socket)
		if err != nil {
			return err
		}
		defer cc.Close()
		conns[p] = cc
		up = append(up, p)
	}
	for _, w := range ws {
		up := slices.Clone(up)
		for i := len(up) - 1; i >= 0; i-- {
			if err := h.warm(ctx, w, up[i], conns[up[i]]); err != nil && !up[i].foreign() {
				return err
			} else if err != nil {
				why, _, _ := strings.Cut(err.Error(), "; its output:")
				r.leaveOut(h.progress, up[i].name+" in “"+w.name+"”", why)
				up = slices.Delete(up, i, i+1)
			}
		}
		turns := make([][]turn, len(up))
		for round := range h.rounds {
			fmt.Fprintf(h.progress, "%-28s round %d of %d\n", w.name, round+1, h.rounds)
			for _, i := range rand.Perm(len(up)) {
				t, err := h.turn(ctx, w, up[i], conns[up[i]], h.time)
				if err != nil {
					return err
				}
				turns[i] = append(turns[i], t)
			}
		}
		for i, p := range up {
			r.add(w, p, turns[i])
		}
	}
	return nil
}

// warm waits until a contender answers at its normal speed: the first calls are not measured.
func (h *harness) warm(ctx context.Context, w work, p *running, cc *grpc.ClientConn) error {
	var err error
	for range 100 {
		if _, err = h.turn(ctx, w, p, cc, 200*time.Millisecond); err == nil {
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return fmt.Errorf("%w; its output:\n%s", err, p.said.String())
}
