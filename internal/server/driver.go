package server

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"k8s.io/klog/v2"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/base/host"
	"github.com/criproxy/criproxy/internal/transport"
)

// watchDrivers logs when the cgroup driver of a runtime differs from the primary's: kubelet
// makes one tree of cgroups, and names all cgroups in one way. It asks every 30 seconds, because a runtime that was upgraded may have
// another one, and logs each difference once. all returns the backends of now.
func watchDrivers(ctx context.Context, all func() []*stack) {
	logged := map[string]bool{}
	ask := func() (again bool) {
		backends := all()
		for _, b := range backends {
			b.askDriver(ctx)
		}
		for _, b := range backends[1:] {
			if text := driverMismatch(backends[0], b); text != "" && !logged[text] {
				logged[text] = true
				klog.ErrorS(nil, "Cgroup drivers differ: "+text)
			}
		}
		return true
	}
	ask()
	every(ctx, 30*time.Second, ask)
}

// askDriver asks the runtime for its cgroup driver, and notes it. One that does not answer keeps the one that it had.
func (b *stack) askDriver(ctx context.Context) {
	if !b.cri {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, AskTimeout)
	defer cancel()
	reply, err := runtimeapi.NewRuntimeServiceClient(b.backend).RuntimeConfig(ctx, &runtimeapi.RuntimeConfigRequest{})
	if err == nil && reply.GetLinux() != nil { // old runtimes do not have this call
		b.driver.Store(reply.GetLinux().GetCgroupDriver().Enum())
	}
}

// askWhenConnected asks the runtime what it is after each new connection, until ctx ends. containerd accepts connections before it
// serves CRI, so it is asked again, at first after a second, until it answers.
func (b *stack) askWhenConnected(ctx context.Context) {
	var again <-chan time.Time
	pause := time.Second
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.fresh:
			pause = time.Second
		case <-again:
		}
		if again = nil; !b.askWhatItIs(ctx) {
			again = time.After(pause)
			pause = min(2*pause, 30*time.Second)
		}
	}
}

// askWhatItIs notes the name and version of the runtime for the time when it cannot be asked. It reports whether the runtime has
// said it.
func (b *stack) askWhatItIs(ctx context.Context) bool {
	if !b.cri {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, AskTimeout)
	defer cancel()
	process := b.servedBy()
	v, err := runtimeapi.NewRuntimeServiceClient(b.conn).Version(ctx, &runtimeapi.VersionRequest{}) // not the cache: that has what it was
	if err != nil {
		return false
	}
	api, _ := b.conn.Versions(ctx) // cannot fail: the Conn knows them after a call
	b.is(runtimeName(v), api, process)
	return true
}

// is notes what the backend has reported of itself. process is the one that served its socket when it was asked. If another one
// does since, it is asked again.
func (b *stack) is(runtime string, api []string, process string) {
	if process != b.servedBy() {
		return
	}
	at := addressOf(b.cfg)
	if b.several() {
		at = "" // another one may answer next
	}
	b.changes.Do(func() {
		if !b.retired.Load() {
			b.changes.Is(b.String(), runtime, api, at, process)
		}
	})
}

// servedBy returns what identifies the process that serves the socket, "" if that is not known.
func (b *stack) servedBy() string {
	process, _ := b.process.Load().(string)
	return process
}

// several reports whether any of several servers can answer a call, which may be of different versions.
func (b *stack) several() bool {
	return len(b.cfg.Addresses) > 0 || strings.HasPrefix(b.cfg.Address, transport.DNSScheme)
}

// noting returns a function that connects as dial does, and notes which process serves the socket. Nil stands for the network of
// this machine. A new connection may lead to a new version of the runtime, so it makes askWhenConnected ask again.
func (b *stack) noting(dial func(ctx context.Context, address string) (net.Conn, error)) func(ctx context.Context, address string) (net.Conn, error) {
	if dial == nil {
		dial = transport.Dial
	}
	return func(ctx context.Context, address string) (net.Conn, error) {
		nc, err := dial(ctx, address)
		if err == nil {
			by, _ := host.Of(nc) // zero if it is no unix socket
			b.process.Store(by.Identity())
			select {
			case b.fresh <- struct{}{}:
			default: // it will be asked
			}
		}
		return nc, err
	}
}

// runtimeName returns the name and version of a runtime.
func runtimeName(v *runtimeapi.VersionResponse) string {
	return strings.TrimSpace(v.GetRuntimeName() + " " + v.GetRuntimeVersion())
}

// driverMismatch describes the difference of two cgroup drivers. It is empty if they agree or
// are unknown.
func driverMismatch(primary, other *stack) string {
	ours, theirs := primary.driver.Load(), other.driver.Load()
	if ours == nil || theirs == nil || *ours == *theirs {
		return ""
	}
	return fmt.Sprintf("backend %s uses the cgroup driver %s, the primary %s; kubelet names the cgroups of all pods in the primary's way, so pods of %s will fail or escape their limits; set both to one driver",
		other, DriverName(*theirs), DriverName(*ours), other)
}

// DriverName returns the name of a cgroup driver as kubelet's configuration spells it.
func DriverName(d runtimeapi.CgroupDriver) string {
	if d == runtimeapi.CgroupDriver_SYSTEMD {
		return "systemd"
	}
	return "cgroupfs"
}
