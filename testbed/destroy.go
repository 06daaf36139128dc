package testbed

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Destroy takes the instance away: pods through CRI, other containers through ctr, then the daemon, then
// by force whatever is left of it, and its folder. It works in any state, frozen, killed or half
// started, and may be called twice. The context bounds only the good manners: once it has ended,
// everything goes by force. Destroy fails when something is left, and names it.
func (c *Containerd) Destroy(ctx context.Context) error {
	if _, alive := c.PID(); alive {
		// In good manners first, because only CRI runs CNI's DEL and only ctr finds containers of other
		// namespaces. What fails here is made up for by Clean, so the errors are of no interest.
		c.Thaw()
		if err := c.removePods(ctx); err == nil {
			c.removeContainers(ctx)
		}
		stop, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		c.Terminate(stop)
	}
	return Clean(c.Dir)
}

// removePods stops and removes every pod.
func (c *Containerd) removePods(ctx context.Context) error {
	return removeSandboxes(ctx, c.Endpoint(), func(string) bool { return true })
}

// removeSandboxes stops and removes the pods at an endpoint whose name is one of ours.
func removeSandboxes(ctx context.Context, endpoint string, ours func(name string) bool) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	conn, err := Dial(strings.TrimPrefix(endpoint, "unix://"))
	if err != nil {
		return err
	}
	defer conn.Close()
	client := runtimeapi.NewRuntimeServiceClient(conn)
	list, err := client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	errs := make([]error, len(list.Items))
	var all sync.WaitGroup
	for i, pod := range list.Items {
		if !ours(pod.GetMetadata().GetName()) {
			continue
		}
		all.Go(func() {
			if _, errs[i] = client.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod.Id}); errs[i] == nil {
				_, errs[i] = client.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod.Id})
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// removeContainers removes what was made by other means than CRI, in every namespace of containerd.
func (c *Containerd) removeContainers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	namespaces, err := c.Ctr(ctx, "namespaces", "ls", "-q")
	if err != nil {
		return err
	}
	var errs []error
	for namespace := range strings.FieldsSeq(namespaces) {
		tasks, err := c.Ctr(ctx, "-n", namespace, "tasks", "ls", "-q")
		errs = append(errs, err)
		for id := range strings.FieldsSeq(tasks) {
			_, err := c.Ctr(ctx, "-n", namespace, "tasks", "rm", "-f", id)
			errs = append(errs, err)
		}
		containers, err := c.Ctr(ctx, "-n", namespace, "containers", "ls", "-q")
		errs = append(errs, err)
		for id := range strings.FieldsSeq(containers) {
			_, err := c.Ctr(ctx, "-n", namespace, "containers", "rm", id)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Leftovers lists what is left on this machine of the instances in dir: processes, mounts, links, cgroups,
// files outside of dir and dir itself. After Destroy it returns nothing.
func Leftovers(dir string) []string {
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	t := findTraces(dir)
	var left []string
	for _, pid := range t.processes() {
		left = append(left, fmt.Sprintf("process %d: %s", pid, strings.Join(command(pid), " ")))
	}
	for _, m := range t.mountPoints() {
		left = append(left, "mount "+m)
	}
	bridges, ports := bridgesOf(dir)
	for _, l := range append(bridges, ports...) {
		left = append(left, "link "+l.Attrs().Name)
	}
	for _, name := range t.cgroupNames() {
		for _, folder := range cgroupFolders(name) {
			left = append(left, "cgroup "+folder)
		}
	}
	for _, file := range t.outside() {
		left = append(left, "file "+file)
	}
	if isDir(dir) {
		left = append(left, "folder "+dir)
	}
	return left
}
