package fakecri

import (
	"context"
	"strings"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// kubeletVersion is the VersionResponse.version that kubelet requires.
const kubeletVersion = "0.1.0"

func (s runtimeService) Version(ctx context.Context, _ *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	api := "v1"
	if method, _ := grpc.Method(ctx); strings.HasPrefix(method, "/"+V1alpha2+".") {
		api = "v1alpha2"
	}
	return &runtimeapi.VersionResponse{
		Version: kubeletVersion, RuntimeName: s.cfg.Name, RuntimeVersion: s.cfg.Version, RuntimeApiVersion: api,
	}, nil
}

// Status reports that the runtime and its network are ready, and that it has all features.
func (s runtimeService) Status(_ context.Context, r *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	reply := &runtimeapi.StatusResponse{
		Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
			{Type: runtimeapi.RuntimeReady, Status: true},
			{Type: runtimeapi.NetworkReady, Status: true},
		}},
		Features: &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: true, UserNamespacesHostNetwork: true, MountOptions: true},
	}
	for _, name := range handlers {
		reply.RuntimeHandlers = append(reply.RuntimeHandlers, &runtimeapi.RuntimeHandler{
			Name: name, Features: &runtimeapi.RuntimeHandlerFeatures{RecursiveReadOnlyMounts: true, UserNamespaces: true},
		})
	}
	if r.GetVerbose() {
		reply.Info = map[string]string{
			"config":            verbose("name", s.cfg.Name, "handlers", handlers)["info"],
			"lastCNILoadStatus": "OK",
		}
	}
	return reply, nil
}

func (s runtimeService) RuntimeConfig(context.Context, *runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error) {
	return &runtimeapi.RuntimeConfigResponse{Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: s.cfg.CgroupDriver}}, nil
}

func (s runtimeService) UpdateRuntimeConfig(_ context.Context, r *runtimeapi.UpdateRuntimeConfigRequest) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.podCIDR = r.GetRuntimeConfig().GetNetworkConfig().GetPodCidr()
	return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
}
