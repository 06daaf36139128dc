package runtimes

import (
	"fmt"
	"path/filepath"
	"sync/atomic"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/testbed/host"
)

var podCount atomic.Int64

// PodConfig returns the configuration of a pod on the instance's bridge, as a kubelet would send it: with
// its own uid, its own cgroup below CgroupParent, and a log folder below Dir. The caller may edit it
// before use:
//
//	pod := rt.PodConfig("web")
//	pod.Annotations["kubernetes.io/target-runtime"] = "two.test"
func (c *Containerd) PodConfig(name string) *runtimeapi.PodSandboxConfig {
	uid := fmt.Sprintf("%08x-0000-4000-8000-%012x", host.Hash(c.Dir), podCount.Add(1))
	return &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "testbed", Uid: uid},
		Hostname:     name,
		LogDirectory: filepath.Join(c.Dir, "logs", "testbed_"+name+"_"+uid),
		Labels:       map[string]string{"io.kubernetes.pod.name": name, "io.kubernetes.pod.namespace": "testbed", "io.kubernetes.pod.uid": uid},
		Annotations:  map[string]string{},
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent:    c.CgroupParent() + "/pod" + uid,
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: &runtimeapi.NamespaceOption{}},
		},
	}
}

// OnHostNetwork puts a pod on the machine's network, which needs no CNI, and returns the pod.
func OnHostNetwork(pod *runtimeapi.PodSandboxConfig) *runtimeapi.PodSandboxConfig {
	pod.Linux.SecurityContext.NamespaceOptions.Network = runtimeapi.NamespaceMode_NODE
	pod.Hostname = ""
	return pod
}

// ContainerConfig returns the configuration of a container that runs the test program with args, and
// logs to NAME/0.log below the pod's log folder. Without args the program sleeps until it is stopped.
func ContainerConfig(name, image string, args ...string) *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{
		Metadata:    &runtimeapi.ContainerMetadata{Name: name},
		Image:       &runtimeapi.ImageSpec{Image: image},
		Args:        args,
		LogPath:     filepath.Join(name, "0.log"),
		Labels:      map[string]string{"io.kubernetes.container.name": name},
		Annotations: map[string]string{},
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources:       &runtimeapi.LinuxContainerResources{},
			SecurityContext: &runtimeapi.LinuxContainerSecurityContext{NamespaceOptions: &runtimeapi.NamespaceOption{}},
		},
	}
}
