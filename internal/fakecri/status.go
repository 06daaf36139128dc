package fakecri

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// kubeletVersion is what VersionResponse.version has to be for kubelet.
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

// Status says that the runtime and its network are ready, unless the Config says
// otherwise. Handlers are sorted.
func (s runtimeService) Status(_ context.Context, r *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	conditions := []*runtimeapi.RuntimeCondition{
		{Type: runtimeapi.RuntimeReady, Status: true},
		{Type: runtimeapi.NetworkReady, Status: true},
	}
	for _, c := range s.cfg.Conditions {
		i := slices.IndexFunc(conditions, func(other *runtimeapi.RuntimeCondition) bool { return other.GetType() == c.GetType() })
		if i < 0 {
			conditions = append(conditions, c)
		} else {
			conditions[i] = c
		}
	}
	reply := &runtimeapi.StatusResponse{
		Status: &runtimeapi.RuntimeStatus{Conditions: conditions}, Features: s.cfg.Features,
	}
	names := append([]string{""}, s.cfg.Handlers...)
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		reply.RuntimeHandlers = append(reply.RuntimeHandlers, &runtimeapi.RuntimeHandler{Name: name, Features: s.cfg.HandlerFeatures})
	}
	if r.GetVerbose() {
		reply.Info = map[string]string{
			"config":            verbose("name", s.cfg.Name, "handlers", names)["info"],
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
