package runtimes

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/testbed/host"
)

// Destroy removes the instance: pods through CRI, other containers through ctr, then the daemon, then
// by force whatever is left, and its folder. It works in any state, even frozen, killed or half started,
// and may be called twice. The context bounds only the orderly part: once it has ended, Destroy uses
// force. If something is left, Destroy fails and names it.
func (c *Containerd) Destroy(ctx context.Context) error {
	if _, alive := c.PID(); alive {
		// In an orderly way first, because only CRI runs CNI's DEL and only ctr finds containers of other
		// namespaces. Errors do not matter here, because Clean removes what is left.
		c.Thaw()
		if err := RemovePods(ctx, c.Endpoint(), func(string) bool { return true }); err == nil {
			c.removeContainers(ctx)
		}
		stop, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		c.Terminate(stop)
	}
	return host.Clean(c.Dir)
}

// RemovePods stops and removes the pods at an endpoint whose names are ours.
func RemovePods(ctx context.Context, endpoint string, ours func(name string) bool) error {
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

// removeContainers removes containers that were not made through CRI, in every namespace of containerd.
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
