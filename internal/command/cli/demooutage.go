package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/observe/calls"
)

// callsItself changes the name of this process, by which the recorder identifies the client. The function that it
// returns restores the name.
func callsItself(name string) func() {
	const comm = "/proc/self/comm"
	was, err := os.ReadFile(comm)
	if err != nil || os.WriteFile(comm, []byte(name), 0) != nil {
		return func() {}
	}
	return func() { _ = os.WriteFile(comm, []byte(strings.TrimSpace(string(was))), 0) } // it is only a name
}

// outage shows what a client sees while a runtime is gone. It makes two pods, which stay. stay is how long the runtime
// is gone.
func (s *session) outage(ctx context.Context, m *machine, stay time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	fmt.Fprintln(s.out)
	if err := s.startPods(ctx); err != nil {
		return err
	}
	vm := s.pods[1]
	// Ask for the status of each listed item, as kubelet does, so that criproxy remembers it.
	made(ctx, s, s.runtime.ListContainers, &runtimeapi.ListContainersRequest{})
	if made(ctx, s, s.runtime.ContainerStatus, &runtimeapi.ContainerStatusRequest{ContainerId: vm.container}); s.err != nil {
		return s.err
	}
	_ = s.list(ctx) // which says so itself

	fmt.Fprintf(s.out, "\n%s is gone. Its pods stay in the lists, so that kubelet does not kill them; the other runtime is not affected:\n\n", demoBackend)
	m.stop()
	s.until(ctx, func() bool { _, err := s.exec(ctx, vm); return err != nil })
	_ = s.list(ctx) // which says so itself
	var header metadata.MD
	if st, err := s.runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: vm.container}, grpc.Header(&header)); err == nil {
		s.say("ContainerStatus", calls.ShortID(vm.container), "%s%s", strings.TrimPrefix(st.GetStatus().GetState().String(), "CONTAINER_"), fromCache(header))
	}
	_ = s.sayExec(ctx, vm) // it fails
	_ = s.sayExec(ctx, s.pods[0])
	_, err := s.runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{RuntimeHandler: "vm", Config: &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "late", Namespace: "default", Uid: "uid-late"}}})
	if ctx.Err() != nil {
		return ctx.Err() // Ctrl-C
	}
	s.say("RunPodSandbox", "late", "%s", cut(status.Convert(err)))

	for back := time.Now().Add(stay); time.Now().Before(back) && ctx.Err() == nil; {
		s.traffic(ctx)
		pause(ctx, time.Second)
	}
	if ctx.Err() != nil {
		return ctx.Err() // Ctrl-C
	}

	fmt.Fprintf(s.out, "\n%s comes back. Nothing was restarted:\n\n", demoBackend)
	if err := m.bringBack(); err != nil {
		return err
	}
	s.until(ctx, func() bool { _, err := s.exec(ctx, vm); return err == nil })
	_ = s.list(ctx) // which says so itself
	_ = s.sayExec(ctx, vm)
	return ctx.Err()
}

// startPods starts the pods that stay, unless it has done so before.
func (s *session) startPods(ctx context.Context) error {
	if s.pods != nil {
		return nil
	}
	s.pods = demoPods()
	for _, p := range s.pods {
		s.start(ctx, p)
	}
	return s.err
}

// list prints the listed pods, or the error of the list.
func (s *session) list(ctx context.Context) error {
	var header metadata.MD
	list, err := s.runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{}, grpc.Header(&header))
	switch {
	case ctx.Err() != nil:
		return ctx.Err() // Ctrl-C
	case err != nil:
		s.say("ListPodSandbox", "", "%s", cut(status.Convert(err)))
		return err
	}
	s.say("ListPodSandbox", "", "%s%s", each(list.GetItems(), func(p *runtimeapi.PodSandbox) string {
		return calls.ShortID(p.GetId()) + " " + p.GetMetadata().GetName()
	}), fromCache(header))
	return nil
}

// fromCache returns a note that names the runtimes whose items are from the cache, empty if there are none.
func fromCache(header metadata.MD) string {
	if names := header[backend.HeaderKey]; len(names) > 0 {
		return "    (" + strings.Join(names, ", ") + " from the cache)"
	}
	return ""
}

// exec prints into a container, and returns what the container printed.
func (s *session) exec(ctx context.Context, p *demoPod) (string, error) {
	got, err := s.runtime.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: p.container, Cmd: []string{"echo", "hello from", p.name}})
	return strings.TrimSpace(string(got.GetStdout())), err
}

// sayExec prints what exec returns.
func (s *session) sayExec(ctx context.Context, p *demoPod) error {
	text, err := s.exec(ctx, p)
	switch {
	case ctx.Err() != nil:
		return ctx.Err() // Ctrl-C
	case err != nil:
		text = cut(status.Convert(err))
	}
	s.say("ExecSync", calls.ShortID(p.container)+" echo", "%s", text)
	return err
}

// cut returns a status on one line.
func cut(s *status.Status) string {
	text, _, _ := strings.Cut(s.Message(), ": (")
	return fmt.Sprintf("%s: %s", s.Code(), text)
}

// until waits until is returns true or ctx ends.
func (s *session) until(ctx context.Context, is func() bool) {
	for !is() && ctx.Err() == nil {
		pause(ctx, 50*time.Millisecond)
	}
}

// keepUp keeps two pods, which print a line a second, and makes the calls of a kubelet, until ctx ends.
func (s *session) keepUp(ctx context.Context, machines []*machine) error {
	out := s.out
	s.out = io.Discard
	if err := s.startPods(ctx); err != nil && ctx.Err() == nil {
		return fmt.Errorf("making the pods that stay: %w", err)
	}
	s.out = out
	fmt.Fprintf(s.out, "  crictl pods\n  crictl exec -s %[1]s hostname\n  crictl logs -f %[1]s\n", calls.ShortID(s.pods[1].container))
	for ctx.Err() == nil {
		for _, m := range machines {
			m.rt.Print("tick")
		}
		s.traffic(ctx)
		pause(ctx, time.Second)
	}
	return nil
}

// traffic makes the calls that a kubelet makes every second. It ignores their errors, which criproxy's own commands
// show. Calls that have begun end also after ctx has ended, so that no command shows them as canceled.
func (s *session) traffic(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, _ = s.runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	_, _ = s.runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	for _, p := range s.pods {
		_, _ = s.runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: p.container})
		_, _ = s.exec(ctx, p)
	}
}
