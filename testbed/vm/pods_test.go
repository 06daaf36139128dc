package vm

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/testbed/kubelet"
)

// The pods that exist from the first boot to the last: a plugin of criproxy, which is on the primary and handles the
// other two, and one pod on each runtime.
var pods = []string{"plugin", "one", "two"}

// pluginPod serves the plugin in hook/plugin/example, which gives containers cpu shares by an annotation.
func pluginPod() *corev1.Pod {
	pod := kubelet.StaticPod("plugin", image)
	create := corev1.HostPathDirectoryOrCreate
	pod.Spec.Volumes = []corev1.Volume{
		{Name: "program", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/payload/bin"}}},
		{Name: "socket", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/run/plugin", Type: &create}}},
	}
	c := &pod.Spec.Containers[0]
	c.Command = []string{"/payload/bin/plugin", "/run/plugin"}
	c.VolumeMounts = []corev1.VolumeMount{{Name: "program", MountPath: "/payload/bin", ReadOnly: true}, {Name: "socket", MountPath: "/run/plugin"}}
	return pod
}

// registration registers the plugin, without which criproxy creates no container.
const registration = `{"remote-endpoint": "/run/plugin/priority.sock", "failure-policy": "Fail", "runtime-hooks": ["PreCreateContainer"], "timeout": "30s"}`

// servingPod returns a pod that serves HTTP, with limits and a readiness probe over the network; the plugin handles it.
func servingPod(name string) *corev1.Pod {
	pod := kubelet.StaticPod(name, image, "serve")
	pod.Annotations["example.org/priority"] = "high"
	c := &pod.Spec.Containers[0]
	c.Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m"), corev1.ResourceMemory: resource.MustParse("128Mi")}
	c.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("32Mi")}
	c.ReadinessProbe = &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(8080)}},
		PeriodSeconds: 2, TimeoutSeconds: 20,
	}
	return pod
}

// highWeight is the cgroup weight to which runc 1.1 converts the plugin's 8192 cpu shares.
const highWeight = "313"

func (n *node) hasAPlugin() {
	n.run("systemctl", "enable", "--now", "kubelet")
	n.addPods(pluginPod())
	n.ready(0, "plugin")
	n.write("/etc/runtime/hookserver.d/priority.json", registration)
	n.pluginIsReady()
	// By the cgroup of its process, whose name comes from the systemd driver.
	n.eventually("criproxy to know the plugin's pod", func() error {
		_, err := n.try("grep", `"name": "plugin-testbed"`, "/var/lib/criproxy/hook-servers.json")
		return err
	})
}

func (n *node) pluginIsReady() {
	n.Helper()
	n.eventually("the plugin to be ready", func() error {
		report, err := n.status()
		if err == nil && (report.Hooks == nil || len(report.Hooks.Plugins) != 1 || report.Hooks.Plugins[0].State != "ready") {
			err = fmt.Errorf("hooks: %+v", report.Hooks)
		}
		return err
	})
}

// status returns the output of criproxy status.
func (n *node) status() (report admin.Report, err error) {
	out, err := n.try("criproxy", "status", "-o", "json")
	if err == nil {
		err = json.Unmarshal([]byte(out), &report)
	}
	return report, err
}

func (n *node) runsPods() {
	onTwo := servingPod("two")
	onTwo.Annotations[targetRuntime] = two
	onTwo.Spec.Containers[0].Image = two + "/" + image
	n.addPods(servingPod("one"), onTwo)
	all := n.ready(0, pods...)

	ctr := func(args string) string { return n.sh(args + " -n k8s.io containers ls -q") }
	for name, has := range map[string]string{"one": ctr("ctr"), "two": ctr("/payload/bin/containerd24/ctr -a /run/two/containerd.sock")} {
		c := all[name].Status.ContainerStatuses[0]
		id := strings.TrimPrefix(strings.TrimPrefix(c.ContainerID, "containerd://"), two+"__")
		assert.Contains(n, has, id, "%s is on another runtime", name)
		assert.Equal(n, name == "two", strings.HasPrefix(c.ContainerID, "containerd://"+two+"__"), c.ContainerID)
	}
	n.haveTheirCgroups(all)
	n.findsNothingWrong()
	n.checksOut()
}

// haveTheirCgroups asserts that the pods are where the systemd driver puts them, with their limits and with what the plugin
// has given them.
func (n *node) haveTheirCgroups(all map[string]corev1.Pod) {
	n.Helper()
	for _, name := range []string{"one", "two"} {
		c := all[name].Status.ContainerStatuses[0]
		id := strings.TrimPrefix(strings.TrimPrefix(c.ContainerID, "containerd://"), two+"__")
		uid := strings.ReplaceAll(string(all[name].UID), "-", "_")
		slice := fmt.Sprintf("/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod%s.slice", uid)
		scope := slice + "/cri-containerd-" + id + ".scope"
		assert.Equal(n, "50000 100000", n.run("cat", slice+"/cpu.max"))
		assert.NotEmpty(n, n.run("cat", scope+"/cgroup.procs"))
		assert.Equal(n, highWeight, n.run("cat", scope+"/cpu.weight"), "the plugin was not asked about %s", name)
	}
}

// checksOut runs check, which must print no warning.
func (n *node) checksOut() {
	n.Helper()
	out := n.run("criproxy", "check", "-config", "/etc/criproxy/config.yaml", "-o", "json")
	var report struct{ Warnings, Errors []string }
	require.NoError(n, json.Unmarshal([]byte(out), &report), out)
	assert.Empty(n, report.Errors)
	assert.Empty(n, report.Warnings)
}

// The plugin's own pod comes back although the plugin cannot be called meanwhile.
func (n *node) losesThePlugin() {
	before := n.ready(0, "plugin")["plugin"].Status.ContainerStatuses[0].RestartCount
	n.sh(`kill -9 $(pidof plugin)`)
	n.ready(before+1, "plugin")
	n.pluginIsReady()
}
