package fakecri

import (
	"cmp"
	"math/rand/v2"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The packages under which the services can be called.
const (
	V1       = "runtime.v1"
	V1alpha2 = "runtime.v1alpha2"
)

// EventMode says what GetContainerEvents does.
type EventMode string

const (
	EventsOn            EventMode = "on"            // like containerd
	EventsUnimplemented EventMode = "unimplemented" // like runtimes before CRI 1.26
	EventsCleanEOF      EventMode = "clean-eof"     // like CRI-O with enable_pod_events off
)

// MetricStyle says whose metrics ListPodSandboxMetrics resembles.
type MetricStyle string

const (
	// ContainerdMetrics have the labels pod, namespace, container, id, image.
	ContainerdMetrics MetricStyle = "containerd"
	// CRIOMetrics have the labels id, image, namespace, pod, container. The metrics of containers
	// leave namespace and pod empty, and CPU usage has an additional label.
	CRIOMetrics MetricStyle = "cri-o"
)

// Config configures a runtime. With the zero Config it resembles containerd.
type Config struct {
	// Name and Version are what the runtime calls itself. Zero means "fakecri"
	// and "2.4.0".
	Name, Version string
	// Packages are the packages under which the services can be called. Zero means V1 only.
	// V1alpha2 lacks the methods that were added after it.
	Packages []string
	// Seed makes ids reproducible: each run with the same calls in the same order has the same ids.
	// Zero means random ids.
	Seed uint64
	// CgroupDriver is the answer of RuntimeConfig. Zero means systemd.
	CgroupDriver runtimeapi.CgroupDriver
	// Metrics says which runtime's metrics to imitate. Zero means ContainerdMetrics.
	Metrics MetricStyle
	// StreamURL is the beginning of the URLs of Exec, Attach and PortForward. Zero means
	// "http://127.0.0.1:10010"; with "/cri" the URLs have no host.
	StreamURL string
	// ImageMount is the mount point that ImageFsInfo names. Zero means "/".
	ImageMount string
	// LooksUpImages makes ListImages answer with the image that its filter names, like CRI-O.
	// Otherwise ListImages ignores the filter, like containerd.
	LooksUpImages bool
	// BatchSize is how many items a Stream* call sends in one message. Zero means 5000.
	BatchSize int
	// NoStreams removes the six Stream* methods, like runtimes before CRI 1.36. NoMetrics
	// removes the methods for metrics.
	NoStreams, NoMetrics bool
	// Checkpoints enables CheckpointContainer, CheckpointPod and RestorePod, which are
	// unimplemented otherwise.
	Checkpoints bool
	// Events is what GetContainerEvents does. Zero means EventsOn.
	Events EventMode
	// PodStatusHasContainers adds the statuses of the pod's containers to PodSandboxStatus, like
	// runtimes whose events kubelet reads.
	PodStatusHasContainers bool
	// ItemBytes is the approximate size in a list of each item that Fill makes. Zero means 900, as
	// in a cluster that has been in use for a while.
	ItemBytes int
}

func (c Config) withDefaults() Config {
	c.Name = cmp.Or(c.Name, "fakecri")
	c.Version = cmp.Or(c.Version, "2.4.0")
	c.Metrics = cmp.Or(c.Metrics, ContainerdMetrics)
	c.StreamURL = cmp.Or(c.StreamURL, "http://127.0.0.1:10010")
	c.ImageMount = cmp.Or(c.ImageMount, "/")
	c.BatchSize = cmp.Or(c.BatchSize, 5000)
	c.Events = cmp.Or(c.Events, EventsOn)
	c.ItemBytes = cmp.Or(c.ItemBytes, 900)
	c.Seed = cmp.Or(c.Seed, rand.Uint64())
	if c.Packages == nil {
		c.Packages = []string{V1}
	}
	return c
}

// lacks reports whether the runtime lacks a method. method has no package and no service.
func (c *Config) lacks(method string) bool {
	switch method {
	case "StreamPodSandboxes", "StreamContainers", "StreamContainerStats", "StreamPodSandboxStats", "StreamImages":
		return c.NoStreams
	case "StreamPodSandboxMetrics":
		return c.NoStreams || c.NoMetrics
	case "ListMetricDescriptors", "ListPodSandboxMetrics":
		return c.NoMetrics
	case "GetContainerEvents":
		return c.Events == EventsUnimplemented
	case "CheckpointContainer", "CheckpointPod", "RestorePod":
		return !c.Checkpoints
	}
	return false
}

// handlers are the names of the runtime handlers.
var handlers = []string{"", "runc"}
