package server

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/klog/v2"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// watchDrivers logs when the cgroup driver of a runtime differs from the primary's: kubelet
// makes one tree of cgroups, and names all cgroups in one way.
func watchDrivers(ctx context.Context, all func() []*backend) {
	logged := map[string]bool{}
	for {
		backends := all()
		for _, b := range backends {
			b.askDriver(ctx)
			b.askWhatItIs(ctx)
		}
		for _, b := range backends[1:] {
			if text := driverMismatch(backends[0], b); text != "" && !logged[text] {
				logged[text] = true
				klog.ErrorS(nil, "Cgroup drivers differ: "+text)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(30 * time.Second):
		}
	}
}

func (b *backend) askDriver(ctx context.Context) {
	if !b.cri {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, AskTimeout)
	defer cancel()
	reply, err := runtimeapi.NewRuntimeServiceClient(b.top).RuntimeConfig(ctx, &runtimeapi.RuntimeConfigRequest{})
	if err == nil && reply.GetLinux() != nil { // old runtimes do not have this call
		b.driver.Store(reply.GetLinux().GetCgroupDriver().Enum())
	}
}

// askWhatItIs notes the name and version of the runtime, once, for the time when it cannot be asked.
func (b *backend) askWhatItIs(ctx context.Context) {
	if !b.cri || b.condition().Runtime != "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, AskTimeout)
	defer cancel()
	var v runtimeapi.VersionResponse
	if b.ask(ctx, runtimeapi.RuntimeService_Version_FullMethodName, &runtimeapi.VersionRequest{}, &v) == nil {
		api, _ := b.conn.Versions(ctx) // cannot fail: the Conn knows them after a call
		b.changes.Is(b.String(), runtimeName(&v), api)
	}
}

// runtimeName returns the name and version of a runtime.
func runtimeName(v *runtimeapi.VersionResponse) string {
	return strings.TrimSpace(v.GetRuntimeName() + " " + v.GetRuntimeVersion())
}

// driverMismatch describes the difference of two cgroup drivers. It is empty if they agree or
// are unknown.
func driverMismatch(primary, other *backend) string {
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
