package criadapter

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/hook/hookapi"
	"github.com/criproxy/criproxy/internal/plugins"
)

//go:embed hooks.yaml
var hookSpec []byte

// HookOptions change what plugins see and do. The zero value is the default.
type HookOptions struct {
	PodResources bool // RunPodSandbox heeds the resources in a plugin's answer
	NativeIDs    bool // clients see ids as the runtimes made them, without prefixes
}

// Plugins configures the plugins that are asked about calls.
type Plugins = plugins.Config

// Hooks returns the configuration of plugins for CRI, from the built-in hooks.yaml. The caller
// adds Folder, Skip and the rest. It fails only by a mistake in this package.
func Hooks(opts HookOptions) (Plugins, error) {
	spec, err := plugins.ParseSpec(hookSpec)
	if err != nil {
		return plugins.Config{}, fmt.Errorf("the built-in hooks.yaml: %w", err)
	}
	if opts.PodResources {
		run := spec.Calls["RunPodSandbox"]
		run.Unheeded = nil
		spec.Calls["RunPodSandbox"] = run
	}
	var own func(string) string
	if !opts.NativeIDs {
		own = ownID
	}
	return plugins.Config{
		Spec:   spec,
		Schema: Schema(),
		Hooks:  hookapi.Schema(),
		Lookup: lookup,
		OwnID:  own,
		List:   list,
	}, nil
}

// ownID removes the name of the runtime from an id. No runtime makes ids that contain the separator.
func ownID(id string) string { return cmp.Or(builtIn().Bare(id), id) }

// list lists the ids of all pods or containers.
func list(ctx context.Context, conn grpc.ClientConnInterface, kind string) ([]string, error) {
	client := runtimeapi.NewRuntimeServiceClient(conn)
	var ids []string
	if kind == "sandbox" {
		reply, err := client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		if err != nil {
			return nil, fmt.Errorf("listing pods: %w", err)
		}
		for _, p := range reply.GetItems() {
			ids = append(ids, p.GetId())
		}
		return ids, nil
	}
	reply, err := client.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, fmt.Errorf("listing containers: %w", err)
	}
	for _, c := range reply.GetContainers() {
		ids = append(ids, c.GetId())
	}
	return ids, nil
}

// lookup makes, from the status of a pod or container, the message about it that plugins get.
func lookup(ctx context.Context, conn grpc.ClientConnInterface, kind, id string) (*plugins.Found, error) {
	client := runtimeapi.NewRuntimeServiceClient(conn)
	if kind == "sandbox" {
		return lookupPod(ctx, client, id)
	}
	return lookupContainer(ctx, client, id)
}

func lookupPod(ctx context.Context, client runtimeapi.RuntimeServiceClient, id string) (*plugins.Found, error) {
	reply, err := client.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true})
	if err != nil {
		return nil, err
	}
	s := reply.GetStatus()
	if s.GetId() == "" {
		return nil, status.Errorf(codes.NotFound, "there is no status of pod %s", id)
	}
	said := parseInfo(reply.GetInfo())
	config := &runtimeapi.PodSandboxConfig{}
	said.read(config)
	md := s.GetMetadata()
	m := &hookapi.PodSandboxHookRequest{
		PodMeta:        &hookapi.PodSandboxMetadata{Name: md.GetName(), Uid: md.GetUid(), Namespace: md.GetNamespace(), Attempt: md.GetAttempt()},
		RuntimeHandler: s.GetRuntimeHandler(),
		Labels:         s.GetLabels(),
		Annotations:    s.GetAnnotations(),
		CgroupParent:   config.GetLinux().GetCgroupParent(),
		Overhead:       hookResources(config.GetLinux().GetOverhead()),
		Resources:      hookResources(config.GetLinux().GetResources()),
	}
	if m.CgroupParent == "" {
		m.CgroupParent = said.cgroupParent()
	}
	return &plugins.Found{ID: s.GetId(), Message: m}, nil
}

func lookupContainer(ctx context.Context, client runtimeapi.RuntimeServiceClient, id string) (*plugins.Found, error) {
	reply, err := client.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		return nil, err
	}
	s := reply.GetStatus()
	if s.GetId() == "" {
		return nil, status.Errorf(codes.NotFound, "there is no status of container %s", id)
	}
	// A status does not name the pod of the container.
	list, err := client.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{Id: s.GetId()}})
	if err != nil {
		return nil, err
	}
	if len(list.GetContainers()) != 1 {
		return nil, status.Errorf(codes.NotFound, "container %s is not listed", id)
	}
	said := parseInfo(reply.GetInfo())
	config, envs := said.containerConfig()
	md := s.GetMetadata()
	m := &hookapi.ContainerResourceHookRequest{
		ContainerMeta:        &hookapi.ContainerMetadata{Name: md.GetName(), Attempt: md.GetAttempt()},
		ContainerAnnotations: s.GetAnnotations(),
		ContainerResources:   hookResources(config.GetLinux().GetResources()),
		ContainerEnvs:        envs,
	}
	if now := s.GetResources().GetLinux(); now != nil { // these include later updates
		m.ContainerResources = hookResources(now)
	}
	return &plugins.Found{ID: s.GetId(), Parent: list.GetContainers()[0].GetPodSandboxId(), Message: m}, nil
}

// hookResources returns resources as plugins get them, in a message with CRI's field numbers.
func hookResources(r *runtimeapi.LinuxContainerResources) *hookapi.LinuxContainerResources {
	if r == nil {
		return nil
	}
	m := &hookapi.LinuxContainerResources{}
	b, err := proto.Marshal(r)
	if err != nil || (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, m) != nil {
		return nil // cannot happen: a decoded message can be encoded
	}
	return m
}
