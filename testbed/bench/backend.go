package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
)

// bigOutput is the length of ExecSync's output: just below the limit of CRI's clients, 16 MiB.
const bigOutput = 15 << 20

// containerID is the id of the i-th container of a backend, as long as a real one.
func containerID(backend string, i int) string {
	r := rand.New(rand.NewPCG(uint64(i), uint64(len(backend))<<32+uint64(backend[0])))
	return fmt.Sprintf("%016x%016x%016x%016x", r.Uint64(), r.Uint64(), r.Uint64(), r.Uint64())
}

// container returns a container like those of a kubelet: some 900 bytes.
func container(backend string, i int) *runtimeapi.Container {
	uid := fmt.Sprintf("%08x-1111-4222-8333-%012x", i, i)
	name := fmt.Sprintf("web-%04d", i)
	return &runtimeapi.Container{
		Id:           containerID(backend, i),
		PodSandboxId: containerID(backend, -1-i/2),
		Metadata:     &runtimeapi.ContainerMetadata{Name: "app", Attempt: 1},
		Image:        &runtimeapi.ImageSpec{Image: "sha256:" + containerID(backend, 1<<30), UserSpecifiedImage: "registry.example.org/team/service/web:v1.23.4"},
		ImageRef:     "sha256:" + containerID(backend, 1<<30),
		ImageId:      "sha256:" + containerID(backend, 1<<30),
		State:        runtimeapi.ContainerState_CONTAINER_RUNNING,
		CreatedAt:    1_780_000_000_000_000_000 + int64(i),
		Labels: map[string]string{
			"io.kubernetes.container.name": "app",
			"io.kubernetes.pod.name":       name + "-6b7f8d9c5d-x2x4z",
			"io.kubernetes.pod.namespace":  "production",
			"io.kubernetes.pod.uid":        uid,
		},
		Annotations: map[string]string{
			"io.kubernetes.container.hash":                     fmt.Sprintf("%08x", i*2654435761),
			"io.kubernetes.container.restartCount":             "1",
			"io.kubernetes.container.terminationMessagePath":   "/dev/termination-log",
			"io.kubernetes.container.terminationMessagePolicy": "File",
			"io.kubernetes.container.ports":                    `[{"name":"http","containerPort":8080,"protocol":"TCP"}]`,
			"io.kubernetes.pod.terminationGracePeriod":         "30",
		},
	}
}

// listOf returns the list of a backend's containers.
func listOf(backend string, containers int) *runtimeapi.ListContainersResponse {
	list := &runtimeapi.ListContainersResponse{}
	for i := range containers {
		list.Containers = append(list.Containers, container(backend, i))
	}
	return list
}

// replies are the encoded replies of a backend.
func replies(backend string, list *runtimeapi.ListContainersResponse) (map[string][]byte, error) {
	first := container(backend, 0)
	all := map[string][]byte{}
	for name, m := range map[string]proto.Message{
		"ListContainers": list,
		"ContainerStatus": &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{
			Id: first.Id, Metadata: first.Metadata, State: first.State, CreatedAt: first.CreatedAt, Image: first.Image,
			ImageRef: first.ImageRef, Labels: first.Labels, Annotations: first.Annotations, ImageId: first.ImageId,
			LogPath: "/var/log/pods/production_web_0/app/1.log",
		}},
		"ExecSync": &runtimeapi.ExecSyncResponse{Stdout: []byte(strings.Repeat("x", bigOutput))},
		"ListPodSandbox": &runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{{
			Id: first.PodSandboxId, Metadata: &runtimeapi.PodSandboxMetadata{Name: "web", Uid: "1", Namespace: "production"},
		}}},
		"ListImages":    &runtimeapi.ListImagesResponse{Images: []*runtimeapi.Image{{Id: first.ImageId, Size: 1}}},
		"Version":       &runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: backend, RuntimeVersion: "1.0.0", RuntimeApiVersion: "v1"},
		"Status":        &runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{{Type: "RuntimeReady", Status: true}}}},
		"RuntimeConfig": &runtimeapi.RuntimeConfigResponse{Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: runtimeapi.CgroupDriver_CGROUPFS}},
	} {
		data, err := proto.Marshal(m)
		if err != nil {
			return nil, err
		}
		all[name] = data
	}
	return all, nil
}

// serveBackend is the process of a backend: a runtime that answers at once, from memory. With -events, its stream of
// events never pauses. With -encode, it encodes each list.
func serveBackend(args []string) error {
	fs := flag.NewFlagSet("backend", flag.ContinueOnError)
	name := fs.String("name", "one", "whose ids are its own")
	socket := fs.String("socket", "", "where to listen")
	containers := fs.Int("containers", 100, "how many there are")
	flood := fs.Bool("events", false, "send events as fast as the client reads them")
	encode := fs.Bool("encode", false, "encode each list, instead of sending an encoded one")
	if err := fs.Parse(args); err != nil {
		return err
	}
	list := listOf(*name, *containers)
	all, err := replies(*name, list)
	if err != nil {
		return err
	}
	event, err := proto.Marshal(&runtimeapi.ContainerEventResponse{
		ContainerId: containerID(*name, 0), ContainerEventType: runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, CreatedAt: 1,
		PodSandboxStatus:   &runtimeapi.PodSandboxStatus{Id: containerID(*name, -1), State: runtimeapi.PodSandboxState_SANDBOX_READY, Labels: container(*name, 0).Labels},
		ContainersStatuses: []*runtimeapi.ContainerStatus{{Id: containerID(*name, 0), Labels: container(*name, 0).Labels, Annotations: container(*name, 0).Annotations}},
	})
	if err != nil {
		return err
	}
	l, err := net.Listen("unix", *socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.ForceServerCodecV2(codec.Raw), grpc.MaxRecvMsgSize(16<<20),
		grpc.UnknownServiceHandler(func(_ any, ss grpc.ServerStream) error {
			full, _ := grpc.MethodFromServerStream(ss)
			method := full[strings.LastIndexByte(full, '/')+1:]
			if err := ss.RecvMsg(&codec.Frame{}); err != nil {
				return err
			}
			switch reply, has := all[method]; {
			case *encode && method == "ListContainers":
				f, err := codec.FrameOf(list)
				if err != nil {
					return err
				}
				return ss.SendMsg(f)
			case method == "GetContainerEvents":
				return sendEvents(ss, event, *flood)
			case has:
				return ss.SendMsg(codec.NewFrame(reply))
			}
			return status.Errorf(codes.Unimplemented, "unknown method %s for service", method)
		}))
	fmt.Fprintln(os.Stderr, "serving", *socket)
	return server.Serve(l)
}

func sendEvents(ss grpc.ServerStream, event []byte, flood bool) error {
	if err := ss.SendHeader(nil); err != nil {
		return err
	}
	for flood {
		if err := ss.SendMsg(codec.NewFrame(event)); err != nil {
			return err
		}
	}
	<-ss.Context().Done()
	return context.Cause(ss.Context())
}
