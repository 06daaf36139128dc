package server

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/observe/admin"
)

// Pods asks every backend for its pods and containers, all at once. A backend that does not answer is named
// in the result, and does not make Pods fail: the pods of the others are what somebody needs then. It fails with
// [admin.ErrNoPods] if the API has no pods.
func (p *Proxy) Pods(ctx context.Context) (admin.Pods, error) {
	s := p.now.Load()
	lists := make([][]admin.Pod, len(s.backends))
	errs := make([]error, len(s.backends))
	ctx, cancel := context.WithTimeout(ctx, StatusTime)
	defer cancel()
	var wg sync.WaitGroup
	for i, b := range s.backends {
		if !b.cri {
			return admin.Pods{}, admin.ErrNoPods
		}
		wg.Go(func() { lists[i], errs[i] = b.pods(ctx) })
	}
	wg.Wait()
	found := admin.Pods{Pods: slices.Concat(lists...)}
	for i, err := range errs {
		if err != nil {
			why := strings.TrimPrefix(status.Convert(err).Message(), "criproxy: ")
			if status.Code(err) == codes.DeadlineExceeded && ctx.Err() != nil {
				why = fmt.Sprintf("it has not answered within %s", StatusTime)
			}
			found.Silent = append(found.Silent, admin.Silent{Backend: s.backends[i].String(), Error: why})
		}
	}
	slices.SortStableFunc(found.Pods, func(a, b admin.Pod) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name), a.Created.Compare(b.Created))
	})
	return found, nil
}

// pods asks the backend for its pods and their containers, at the same time. A container whose pod is in neither list makes one
// whose state is unknown, so that none is missing. If one of the two lists fails, the pods of the other are there, and so is the error.
func (b *stack) pods(ctx context.Context) ([]admin.Pod, error) {
	var sandboxes runtimeapi.ListPodSandboxResponse
	var containers runtimeapi.ListContainersResponse
	var headers [2]metadata.MD
	var errs [2]error
	var wg sync.WaitGroup
	wg.Go(func() {
		errs[0] = b.ask(ctx, runtimeapi.RuntimeService_ListPodSandbox_FullMethodName, &runtimeapi.ListPodSandboxRequest{}, &sandboxes, grpc.Header(&headers[0]))
	})
	wg.Go(func() {
		errs[1] = b.ask(ctx, runtimeapi.RuntimeService_ListContainers_FullMethodName, &runtimeapi.ListContainersRequest{}, &containers, grpc.Header(&headers[1]))
	})
	wg.Wait()
	fromCache := len(headers[0][backend.HeaderKey])+len(headers[1][backend.HeaderKey]) > 0
	pods := []admin.Pod{}
	place := map[string]int{} // :: native id of a sandbox → its place in pods
	for _, s := range sandboxes.GetItems() {
		place[s.GetId()] = len(pods)
		pods = append(pods, admin.Pod{
			Name: s.GetMetadata().GetName(), Namespace: s.GetMetadata().GetNamespace(), UID: s.GetMetadata().GetUid(),
			Backend: b.String(), State: stateName(s.GetState().String(), "SANDBOX_"), Created: moment(s.GetCreatedAt()), Handler: s.GetRuntimeHandler(),
			ID: b.prefix + s.GetId(), NativeID: s.GetId(), FromCache: fromCache, Containers: []admin.Container{},
		})
	}
	for _, c := range containers.GetContainers() {
		i, ok := place[c.GetPodSandboxId()]
		if !ok { // the container was created between the two lists, or its sandbox was removed
			i = len(pods)
			place[c.GetPodSandboxId()] = i
			pods = append(pods, admin.Pod{
				Name: c.GetLabels()["io.kubernetes.pod.name"], Namespace: c.GetLabels()["io.kubernetes.pod.namespace"], UID: c.GetLabels()["io.kubernetes.pod.uid"],
				Backend: b.String(), State: "unknown", ID: b.prefix + c.GetPodSandboxId(), NativeID: c.GetPodSandboxId(), FromCache: fromCache,
			})
		}
		image := c.GetImage().GetUserSpecifiedImage()
		pods[i].Containers = append(pods[i].Containers, admin.Container{
			Name: c.GetMetadata().GetName(), Attempt: c.GetMetadata().GetAttempt(), State: stateName(c.GetState().String(), "CONTAINER_"),
			Created: moment(c.GetCreatedAt()), Image: cmp.Or(image, c.GetImage().GetImage()), ID: b.prefix + c.GetId(), NativeID: c.GetId(),
		})
	}
	if errs[0] != nil {
		return pods, errs[0]
	}
	return pods, errs[1]
}

// stateName returns the name of a state in CRI in lower case, without its prefix.
func stateName(name, prefix string) string { return strings.ToLower(strings.TrimPrefix(name, prefix)) }

// moment returns a time in CRI's form, nanoseconds since 1970, as a time.Time.
func moment(nanoseconds int64) time.Time {
	if nanoseconds == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanoseconds).UTC()
}
