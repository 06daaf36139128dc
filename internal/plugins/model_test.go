package plugins_test

import (
	"maps"
	"slices"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/hook/hookapi"
)

// This file computes in typed code, one field after the other, what an answer makes of a request. It is the checklist of
// KoordRuntimeProxy's semantics, with which the fuzzer compares the package.

// modelPod changes a RunPodSandbox.
func modelPod(in *runtimeapi.RunPodSandboxRequest, a *hookapi.PodSandboxHookResponse) *runtimeapi.RunPodSandboxRequest {
	out := proto.CloneOf(in)
	config := func() *runtimeapi.PodSandboxConfig {
		if out.Config == nil {
			out.Config = &runtimeapi.PodSandboxConfig{}
		}
		return out.Config
	}
	linux := func() *runtimeapi.LinuxPodSandboxConfig {
		if config().Linux == nil {
			out.Config.Linux = &runtimeapi.LinuxPodSandboxConfig{}
		}
		return out.Config.Linux
	}
	modelMap(a.GetLabels(), out.GetConfig().GetLabels(), func(m map[string]string) { config().Labels = m })
	modelMap(a.GetAnnotations(), out.GetConfig().GetAnnotations(), func(m map[string]string) { config().Annotations = m })
	if p := a.GetCgroupParent(); p != "" && p != in.GetConfig().GetLinux().GetCgroupParent() {
		linux().CgroupParent = p
	}
	return out
}

// modelContainer changes a CreateContainer.
func modelContainer(in *runtimeapi.CreateContainerRequest, a *hookapi.ContainerResourceHookResponse) *runtimeapi.CreateContainerRequest {
	out := proto.CloneOf(in)
	config := func() *runtimeapi.ContainerConfig {
		if out.Config == nil {
			out.Config = &runtimeapi.ContainerConfig{}
		}
		return out.Config
	}
	modelMap(a.GetContainerAnnotations(), out.GetConfig().GetAnnotations(), func(m map[string]string) { config().Annotations = m })
	was := in.GetConfig().GetLinux().GetResources()
	modelResources(was, was, a.GetContainerResources(), func(r *runtimeapi.LinuxContainerResources) {
		if config().Linux == nil {
			out.Config.Linux = &runtimeapi.LinuxContainerConfig{}
		}
		out.Config.Linux.Resources = r
	})
	if p := a.GetPodCgroupParent(); p != "" && p != in.GetSandboxConfig().GetLinux().GetCgroupParent() {
		if out.SandboxConfig == nil {
			out.SandboxConfig = &runtimeapi.PodSandboxConfig{}
		}
		if out.SandboxConfig.Linux == nil {
			out.SandboxConfig.Linux = &runtimeapi.LinuxPodSandboxConfig{}
		}
		out.SandboxConfig.Linux.CgroupParent = p
	}
	if envs, changed := modelEnvs(in.GetConfig().GetEnvs(), a.GetContainerEnvs()); changed {
		config().Envs = envs
	}
	return out
}

// modelUpdate changes an UpdateContainerResources. The plugin got the resources with which the container was
// created, and those in the request.
func modelUpdate(in *runtimeapi.UpdateContainerResourcesRequest, made *runtimeapi.ContainerConfig, a *hookapi.ContainerResourceHookResponse) *runtimeapi.UpdateContainerResourcesRequest {
	out := proto.CloneOf(in)
	passed := proto.CloneOf(made.GetLinux().GetResources())
	over := proto.CloneOf(in.GetLinux())
	if over == nil {
		over = &runtimeapi.LinuxContainerResources{}
	}
	if len(over.HugepageLimits) > 0 {
		passed.HugepageLimits = nil // the whole list is replaced
	}
	proto.Merge(passed, over)
	modelResources(in.GetLinux(), passed, a.GetContainerResources(), func(r *runtimeapi.LinuxContainerResources) {
		if in.Linux != nil || proto.Size(r) > 0 { // an empty message that was not there stays away
			out.Linux = r
		}
	})
	annotations := maps.Clone(made.GetAnnotations())
	maps.Copy(annotations, in.GetAnnotations())
	for k, v := range a.GetContainerAnnotations() {
		if has, ok := annotations[k]; !ok || has != v {
			if out.Annotations == nil {
				out.Annotations = map[string]string{}
			}
			out.Annotations[k] = v
		}
	}
	return out
}

// modelMap merges a map key by key.
func modelMap(answer, was map[string]string, set func(map[string]string)) {
	is := maps.Clone(was)
	if is == nil {
		is = map[string]string{}
	}
	maps.Copy(is, answer)
	if !maps.Equal(is, was) {
		set(is)
	}
}

// modelResources sets the fields of an answer that differ from those that the plugin got.
func modelResources(in, passed *runtimeapi.LinuxContainerResources, a *hookapi.LinuxContainerResources, set func(*runtimeapi.LinuxContainerResources)) {
	if a == nil {
		return
	}
	out := proto.CloneOf(in)
	if out == nil {
		out = &runtimeapi.LinuxContainerResources{}
	}
	changed := false
	number := func(want, is int64, holds bool, to *int64) {
		if holds && want != is {
			*to, changed = want, true
		}
	}
	number(a.CpuPeriod, passed.GetCpuPeriod(), a.CpuPeriod > 0, &out.CpuPeriod)
	number(a.CpuQuota, passed.GetCpuQuota(), a.CpuQuota != 0, &out.CpuQuota)
	number(a.CpuShares, passed.GetCpuShares(), a.CpuShares > 0, &out.CpuShares)
	number(a.MemoryLimitInBytes, passed.GetMemoryLimitInBytes(), a.MemoryLimitInBytes > 0, &out.MemoryLimitInBytes)
	number(a.MemorySwapLimitInBytes, passed.GetMemorySwapLimitInBytes(), a.MemorySwapLimitInBytes > 0, &out.MemorySwapLimitInBytes)
	number(a.OomScoreAdj, passed.GetOomScoreAdj(), a.OomScoreAdj != 0 && a.OomScoreAdj >= -1000 && a.OomScoreAdj <= 1000, &out.OomScoreAdj)
	if a.CpusetCpus != passed.GetCpusetCpus() {
		out.CpusetCpus, changed = a.CpusetCpus, true
	}
	if a.CpusetMems != passed.GetCpusetMems() {
		out.CpusetMems, changed = a.CpusetMems, true
	}
	for k, v := range a.Unified {
		if has, ok := passed.GetUnified()[k]; !ok || has != v {
			if out.Unified == nil {
				out.Unified = map[string]string{}
			}
			out.Unified[k], changed = v, true
		}
	}
	var limits []*runtimeapi.HugepageLimit
	for _, l := range a.HugepageLimits {
		limit := &runtimeapi.HugepageLimit{PageSize: l.PageSize, Limit: l.Limit}
		limit.ProtoReflect().SetUnknown(l.ProtoReflect().GetUnknown()) // fields of a newer CRI
		limits = append(limits, limit)
	}
	if len(limits) > 0 && !slices.EqualFunc(limits, passed.GetHugepageLimits(), func(a, b *runtimeapi.HugepageLimit) bool { return proto.Equal(a, b) }) {
		out.HugepageLimits, changed = limits, true
	}
	if changed {
		set(out)
	}
}

// modelEnvs replaces an environment: existing variables keep their place, and new ones follow.
func modelEnvs(was []*runtimeapi.KeyValue, answer map[string]string) (is []*runtimeapi.KeyValue, changed bool) {
	if len(answer) == 0 {
		return nil, false
	}
	passed := map[string]string{} // the last one counts, if it is text
	there := map[string]bool{}
	for _, kv := range was {
		delete(passed, kv.Key)
		there[kv.Key] = true
		if utf8.Valid(kv.Value) {
			passed[kv.Key] = string(kv.Value)
		}
	}
	for _, kv := range was {
		want, wanted := answer[kv.Key]
		has, known := passed[kv.Key]
		switch {
		case !wanted && known:
			changed = true
		case wanted && (!known || has != want):
			kv = proto.CloneOf(kv) // with its unknown fields
			kv.Value = []byte(want)
			is, changed = append(is, kv), true
		default:
			is = append(is, kv)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(answer)) {
		if !there[key] {
			is, changed = append(is, &runtimeapi.KeyValue{Key: key, Value: []byte(answer[key])}), true
		}
	}
	return is, changed
}
