package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/kubelet"
	"github.com/criproxy/criproxy/testbed/proxy"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

const (
	nodePods  = 100
	nodeWatch = time.Minute

	// nodeSettles is how long a kubelet takes to settle after its runtime was away for a moment.
	nodeSettles = 20 * time.Second
)

// realNode is a real kubelet with pods, on criproxy in front of real containerds.
type realNode struct {
	runtimes []*runtimes.Containerd
	front    *proxy.Proxy
	kubelet  *kubelet.Kubelet
	undo     []func(context.Context) error // last first
}

const (
	nodeMirror   = "registry.test" // the runtimes' name for the registry
	secondOfNode = "two.test"      // the second runtime's name
)

// startNode starts a kubelet on criproxy in front of a containerd of each version. It needs what the testbed needs. The
// caller must destroy the node.
func (h *harness) startNode(ctx context.Context, versions []string, flags ...string) (_ *realNode, err error) {
	bin, err := build.Get(ctx, h.progress, append(build.ForContainers(), build.Kubelet)...)
	if err != nil {
		return nil, err
	}
	n := &realNode{}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.destroy(ctx))
		}
	}()
	registry, err := runtimes.StartRegistry(runtimes.RegistryConfig{App: bin.App})
	if err != nil {
		return nil, err
	}
	n.undo = append(n.undo, func(context.Context) error { return registry.Close() })
	yaml := "backends:\n"
	for i, version := range versions {
		rt, err := runtimes.StartContainerd(ctx, runtimes.Config{Version: version, Binaries: bin, Registry: registry.Addr, Mirrors: map[string]string{nodeMirror: registry.Addr}})
		if err != nil {
			return nil, err
		}
		n.runtimes = append(n.runtimes, rt)
		n.undo = append(n.undo, rt.Destroy)
		yaml += "- address: " + rt.Socket() + "\n"
		if i > 0 {
			yaml += "  name: " + secondOfNode + "\n"
		}
	}
	if n.front, err = proxy.Start(ctx, proxy.Config{Program: h.program, YAML: yaml, Flags: append([]string{"-v", "0"}, flags...)}); err != nil {
		return nil, err
	}
	n.undo = append(n.undo, n.front.Destroy)
	if n.kubelet, err = kubelet.Start(ctx, kubelet.Config{Binaries: bin, Endpoint: n.front.Endpoint(), Verbosity: 2}); err != nil {
		return nil, err
	}
	n.undo = append(n.undo, n.kubelet.Destroy)
	return n, nil
}

// destroy removes the node. It does so even if ctx has ended.
func (n *realNode) destroy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Minute)
	defer cancel()
	var errs []error
	for _, undo := range slices.Backward(n.undo) {
		errs = append(errs, undo(ctx))
	}
	return errors.Join(errs...)
}

// run runs pods, after edit has edited each, and returns when all of them are ready.
func (n *realNode) run(ctx context.Context, pods int, edit func(i int, pod *corev1.Pod)) error {
	name := func(i int) string { return fmt.Sprintf("pod%03d", i) }
	for i := range pods {
		pod := kubelet.StaticPod(name(i), nodeMirror+"/testbed/app:1")
		pod.Spec.HostNetwork = true // quick to start
		edit(i, pod)
		if err := n.kubelet.AddManifest(pod); err != nil {
			return err
		}
	}
	for i := range pods {
		if _, err := n.kubelet.WaitRunning(ctx, name(i)); err != nil {
			return err
		}
	}
	return nil
}

// kubelet measures what criproxy uses on an idle node with a real kubelet and pods on a real containerd. It needs what
// the testbed needs.
func (h *harness) kubelet(ctx context.Context, r *report) (err error) {
	if reasons := testbed.Requirements(); len(reasons) > 0 {
		r.leaveOut(h.progress, "a real kubelet", errors.Join(reasons...).Error())
		return nil
	}
	n, err := h.startNode(ctx, []string{"2.4"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.destroy(ctx)) }()
	fmt.Fprintf(h.progress, "a real kubelet with %d pods\n", nodePods)
	if err := n.run(ctx, nodePods, func(int, *corev1.Pod) {}); err != nil {
		return err
	}
	front := n.front
	pid, up := front.PID()
	if !up {
		return fmt.Errorf("criproxy has ended: see %s", front.LogFile())
	}
	counted, err := proxy.Metrics(ctx, front.Admin())
	if err != nil {
		return err
	}
	fmt.Fprintf(h.progress, "all of them run; watching for %s\n", nodeWatch)
	used, err := watch(ctx, ours, pid)
	if err != nil {
		return err
	}
	now, err := proxy.Metrics(ctx, front.Admin())
	if err != nil {
		return err
	}
	for name, n := range now {
		if method, ok := strings.CutPrefix(name, `criproxy_calls_total{code="OK",method="`); ok && n > counted[name] {
			r.mix = append(r.mix, mixed{strings.TrimSuffix(method, `"}`), (n - counted[name]) / nodeWatch.Seconds()})
		}
	}
	slices.SortFunc(r.mix, func(a, b mixed) int { return cmp.Compare(b.rate, a.rate) })
	t := target{What: fmt.Sprintf("a real kubelet with %d pods: part of a core", nodePods), Want: "≤ 0.7%", Got: fmt.Sprintf("%.2f%%", 100*used.part), Met: used.part <= 0.007}
	r.node = append(r.node, used)
	if err := front.Terminate(ctx); err != nil {
		return err
	}
	// The same kubelet and the same pods, with other contenders in place of criproxy.
	for _, name := range []string{bare, limit, koord, stock} {
		c := called(name)
		if h.missing(ctx, c) != "" {
			continue // the report already says so
		}
		used, err := h.inPlaceOf(ctx, c, front.Socket(), n.runtimes[0].Socket())
		if err != nil {
			return err
		}
		r.node = append(r.node, used)
		if name == limit {
			t.Limit = fmt.Sprintf("%.2f%%", 100*used.part)
		}
	}
	r.alone = append(r.alone, t)
	return nil
}

// inPlaceOf measures what c uses in place of criproxy.
func (h *harness) inPlaceOf(ctx context.Context, c contender, socket, backend string) (load, error) {
	fmt.Fprintf(h.progress, "watching %s in its place for %s\n", c.name, nodeWatch)
	p, err := h.startContender(ctx, c, socket, []string{backend})
	if err != nil {
		return load{}, err
	}
	defer p.stop()
	if err := pause(ctx, nodeSettles); err != nil {
		return load{}, err
	}
	return watch(ctx, c.name, p.cmd.Process.Pid)
}

// watch measures what a process uses from now on.
func watch(ctx context.Context, name string, pid int) (load, error) {
	before, err := usageOf(pid)
	if err != nil {
		return load{}, err
	}
	if err := pause(ctx, nodeWatch); err != nil {
		return load{}, err
	}
	after, err := usageOf(pid)
	if err != nil {
		return load{}, err
	}
	m, err := memoryOf(pid)
	return load{name, after.minus(before).cpu.Seconds() / nodeWatch.Seconds(), m.now}, err
}

// pause waits for d. It returns an error if ctx ends first.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
