package cri_test

import (
	"path"
	"testing"

	"github.com/stretchr/testify/assert"
	"google.golang.org/protobuf/reflect/protoreflect"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/cri"
)

func TestShortNamesAreThoseOfCRIAlone(t *testing.T) {
	for method, want := range map[string]bool{
		"/runtime.v1.RuntimeService/Version": true, "/runtime.v1alpha2.ImageService/PullImage": true, "/runtime.RuntimeService/Version": true,
		"/runtime.v1.RuntimeService/NewerThanUs": true, "/runtime.v1.OtherService/Version": false, "/containerd.services.version.v1.Version/Version": false,
	} {
		name, ok := cri.ShortName(method)
		assert.Equal(t, want, ok, method)
		assert.Equal(t, path.Base(method), name)
	}
}

func TestVolatileFieldsAreTimesAndMeasurements(t *testing.T) {
	for field, want := range map[string]bool{
		"PodSandbox.created_at": true, "ContainerStatus.finished_at": true, "PodSandboxNetworkStatus.ip": true, "CpuUsage.timestamp": true,
		"MemoryUsage.timestamp": true, "UInt64Value.value": true, "PsiData.Avg10": true, "Metric.metric_type": true, "Metric.value": false,
		"CpuUsage.usage_nano_cores": false, "FilesystemUsage.fs_id": false, "NetworkInterfaceUsage.name": false, "Metric.name": false, "Metric.label_values": false,
		"Container.id": false, "Container.state": false,
	} {
		assert.Equal(t, want, cri.Volatile(fieldOf(t, field)), field)
	}
}

func fieldOf(t *testing.T, name string) protoreflect.FieldDescriptor {
	md := runtimeapi.File_staging_src_k8s_io_cri_api_pkg_apis_runtime_v1_api_proto.Messages().ByName(protoreflect.FullName(name).Parent().Name())
	found := md.Fields().ByName(protoreflect.FullName(name).Name())
	if found == nil {
		t.Fatalf("cri-api has no field %s", name)
	}
	return found
}

// FuzzImageNames checks that each of the names of an image is among its own names.
func FuzzImageNames(f *testing.F) {
	f.Add("busybox")
	f.Add("docker.io/library/nginx:1")
	f.Fuzz(func(t *testing.T, image string) {
		for _, other := range cri.ImageNames(image) {
			assert.Contains(t, cri.ImageNames(other), other)
		}
	})
}
