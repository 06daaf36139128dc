// Package plugin makes a plugin for criproxy of a few functions. The plugin also works with
// KoordRuntimeProxy, whose protocol criproxy uses:
//
//	p := plugin.Plugin{
//		Name: "shares",
//		PreCreateContainer: func(ctx context.Context, r *plugin.Container) (*plugin.ContainerAnswer, error) {
//			answer := plugin.Echo(r)
//			answer.ContainerResources.CpuShares = 2
//			return answer, nil
//		},
//	}
//	err := p.Run(ctx)
//
// [Plugin.Run] serves the functions that are set, and registers the plugin with a file in the
// folder of plugins. When ctx ends it removes the file and the socket.
package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/criproxy/criproxy/hook/hookapi"
)

// Short names for the messages that a plugin gets and answers.
type (
	Pod             = hookapi.PodSandboxHookRequest
	PodAnswer       = hookapi.PodSandboxHookResponse
	Container       = hookapi.ContainerResourceHookRequest
	ContainerAnswer = hookapi.ContainerResourceHookResponse
	Resources       = hookapi.LinuxContainerResources
)

// A PodHook is a function that criproxy calls before or after a call about a pod. It may keep and
// change pod. A nil answer changes nothing. If the Plugin has Fail, an error makes criproxy refuse
// the call. criproxy ignores the answer of a hook after the call (Post...).
type PodHook func(ctx context.Context, pod *Pod) (*PodAnswer, error)

// A ContainerHook is a [PodHook] for calls about a container.
type ContainerHook func(ctx context.Context, container *Container) (*ContainerAnswer, error)

// Defaults of a [Plugin].
const (
	DefaultFolder  = "/etc/runtime/hookserver.d"
	DefaultSockets = "/run/criproxy-plugins"
)

// maxMessage is the largest message, in bytes, that criproxy sends and accepts by default.
const maxMessage = 16 << 20

// A Plugin has a name, and a function for each point at which criproxy should call it. Several
// goroutines call the functions at once. A panic in a function becomes the error of that call.
type Plugin struct {
	// Name is the name of the plugin's file, without ".json". criproxy asks plugins in the
	// order of their names.
	Name string

	// Socket is the path of the plugin's socket. Empty means NAME.sock in [DefaultSockets].
	Socket string

	// Folder is the folder in which plugins register. Empty means [DefaultFolder].
	Folder string

	// Fail makes criproxy refuse a client's call if the plugin does not answer, or answers with
	// an error. Without Fail criproxy then goes on as if there were no plugin.
	Fail bool

	// Timeout is how long criproxy waits for an answer. Zero means criproxy's default, two
	// seconds.
	Timeout time.Duration

	PreRunPodSandbox              PodHook
	PostStopPodSandbox            PodHook
	PreCreateContainer            ContainerHook
	PreStartContainer             ContainerHook
	PostStartContainer            ContainerHook
	PostStopContainer             ContainerHook
	PreUpdateContainerResources   ContainerHook
	PreUpdatePodSandboxResources  PodHook // this one and those below do not exist in KoordRuntimeProxy
	PostUpdatePodSandboxResources PodHook
	PostRemovePodSandbox          PodHook
	PostRemoveContainer           ContainerHook
}

// Run serves and registers the plugin until ctx ends. Then it removes the file and the socket, and
// returns when the calls under way have ended, or after five seconds.
func (p Plugin) Run(ctx context.Context) error {
	if p.Name == "" || p.Name != filepath.Base(p.Name) || p.Name[0] == '.' {
		return fmt.Errorf("plugin name %q: want the name of a file, without .json", p.Name)
	}
	if p.Folder == "" {
		p.Folder = DefaultFolder
	}
	if p.Socket == "" {
		p.Socket = filepath.Join(DefaultSockets, p.Name+".sock")
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage))
	points := p.register(server)
	if len(points) == 0 {
		return fmt.Errorf("plugin %s: has no function: set at least one, such as PreCreateContainer", p.Name)
	}
	l, err := p.listen()
	if err != nil {
		return fmt.Errorf("plugin %s: %w", p.Name, err)
	}
	served := make(chan error, 1)
	go func() {
		err := server.Serve(l)
		if errors.Is(err, grpc.ErrServerStopped) {
			err = nil // Stop came before Serve
		}
		served <- err
	}()
	// Serve the socket before the file exists, and until the file is gone.
	if err := p.writeFile(points); err != nil {
		server.Stop()
		return errors.Join(fmt.Errorf("plugin %s: registering: %w", p.Name, err), <-served)
	}
	select {
	case err = <-served:
	case <-ctx.Done():
	}
	if gone := os.Remove(p.file()); gone != nil && !errors.Is(gone, os.ErrNotExist) {
		err = errors.Join(err, fmt.Errorf("plugin %s: unregistering: %w", p.Name, gone))
	}
	if ctx.Err() == nil {
		server.Stop()
		return err
	}
	hurry := time.AfterFunc(5*time.Second, server.Stop)
	defer hurry.Stop()
	server.GracefulStop()
	return errors.Join(err, <-served)
}

func (p Plugin) file() string { return filepath.Join(p.Folder, p.Name+".json") }

func (p Plugin) listen() (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(p.Socket), 0o755); err != nil {
		return nil, err
	}
	if conn, err := net.Dial("unix", p.Socket); err == nil {
		_ = conn.Close() // nothing was sent
		return nil, fmt.Errorf("another process already serves %s", p.Socket)
	}
	if info, err := os.Lstat(p.Socket); err == nil && info.Mode().Type() == os.ModeSocket {
		if err := os.Remove(p.Socket); err != nil {
			return nil, err
		}
	}
	return net.Listen("unix", p.Socket)
}

// writeFile registers the plugin. It renames a complete file into place, because criproxy may read
// it at any time.
func (p Plugin) writeFile(points []string) error {
	file := struct {
		Endpoint string   `json:"remote-endpoint"`
		Policy   string   `json:"failure-policy"`
		Hooks    []string `json:"runtime-hooks"`
		Timeout  string   `json:"timeout,omitempty"`
	}{p.Socket, "Ignore", points, ""}
	if p.Fail {
		file.Policy = "Fail"
	}
	if p.Timeout != 0 {
		file.Timeout = p.Timeout.String()
	}
	data, err := json.MarshalIndent(file, "", "\t")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(p.Folder, 0o755); err != nil {
		return err
	}
	next := filepath.Join(p.Folder, "."+p.Name+".next")
	if err := os.WriteFile(next, append(data, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(next, p.file())
}

// register registers the functions that are set, and returns their points.
func (p Plugin) register(server *grpc.Server) []string {
	const koord, ours = "runtime.v1alpha1.RuntimeHookService", "criproxy.hook.v1.RuntimeHookService"
	services := map[string]*grpc.ServiceDesc{
		koord: {ServiceName: koord, HandlerType: (*any)(nil)},
		ours:  {ServiceName: ours, HandlerType: (*any)(nil)},
	}
	var points []string
	add := func(service, point string, there bool, call func(context.Context, func(any) error) (any, error)) {
		if !there {
			return
		}
		points = append(points, point)
		services[service].Methods = append(services[service].Methods, grpc.MethodDesc{
			MethodName: point + "Hook",
			Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
				return call(ctx, decode)
			},
		})
	}
	pod := func(service, point string, f PodHook) { add(service, point, f != nil, serve(f)) }
	container := func(service, point string, f ContainerHook) { add(service, point, f != nil, serve(f)) }
	pod(koord, "PreRunPodSandbox", p.PreRunPodSandbox)
	pod(koord, "PostStopPodSandbox", p.PostStopPodSandbox)
	container(koord, "PreCreateContainer", p.PreCreateContainer)
	container(koord, "PreStartContainer", p.PreStartContainer)
	container(koord, "PostStartContainer", p.PostStartContainer)
	container(koord, "PostStopContainer", p.PostStopContainer)
	container(koord, "PreUpdateContainerResources", p.PreUpdateContainerResources)
	pod(ours, "PreUpdatePodSandboxResources", p.PreUpdatePodSandboxResources)
	pod(ours, "PostUpdatePodSandboxResources", p.PostUpdatePodSandboxResources)
	pod(ours, "PostRemovePodSandbox", p.PostRemovePodSandbox)
	container(ours, "PostRemoveContainer", p.PostRemoveContainer)
	for _, s := range services {
		server.RegisterService(s, nil)
	}
	return points
}

// serve returns a handler that decodes a request and calls f. A panic of f becomes an error.
func serve[Q, A any, F ~func(context.Context, *Q) (*A, error)](f F) func(context.Context, func(any) error) (any, error) {
	return func(ctx context.Context, decode func(any) error) (reply any, err error) {
		in := new(Q)
		if err := decode(in); err != nil {
			return nil, err
		}
		defer func() {
			if r := recover(); r != nil {
				reply, err = nil, status.Errorf(codes.Internal, "the plugin panicked: %v\n%s", r, debug.Stack())
			}
		}()
		answer, err := f(ctx, in)
		if answer == nil {
			answer = new(A)
		}
		return answer, err
	}
}

// Echo returns an answer that changes nothing, with copies of all that r has. A hook should begin
// with it: an answer with resources but without a cpuset clears the cpuset, and an answer with
// environment variables removes those that it leaves out. The resources and maps in the answer are
// never nil.
func Echo(r *Container) *ContainerAnswer {
	c := proto.CloneOf(r)
	a := &ContainerAnswer{
		ContainerAnnotations: c.GetContainerAnnotations(),
		ContainerResources:   c.GetContainerResources(),
		PodCgroupParent:      c.GetPodCgroupParent(),
		ContainerEnvs:        c.GetContainerEnvs(),
	}
	if a.ContainerResources == nil {
		a.ContainerResources = &Resources{}
	}
	if a.ContainerAnnotations == nil {
		a.ContainerAnnotations = map[string]string{}
	}
	if a.ContainerEnvs == nil {
		a.ContainerEnvs = map[string]string{}
	}
	return a
}

// EchoPod is [Echo] for pods, except that the resources are nil if those of r are.
func EchoPod(r *Pod) *PodAnswer {
	p := proto.CloneOf(r)
	a := &PodAnswer{Labels: p.GetLabels(), Annotations: p.GetAnnotations(), CgroupParent: p.GetCgroupParent(), Resources: p.GetResources()}
	if a.Labels == nil {
		a.Labels = map[string]string{}
	}
	if a.Annotations == nil {
		a.Annotations = map[string]string{}
	}
	return a
}

// A Call describes the client's call for which criproxy calls a hook. All fields are empty under
// KoordRuntimeProxy.
type Call struct {
	Point   string // the name of the hook: "PostStartContainer"
	ID      string // of the pod or container; empty before it exists
	PodID   string // of the pod that the container is in
	Code    string // after the call: its status code, such as "OK" or "NotFound"
	Message string // after a call that failed: its error message
}

// CallOf returns the client's call, from the context of a hook.
func CallOf(ctx context.Context) Call {
	get := func(key string) string {
		if v := metadata.ValueFromIncomingContext(ctx, key); len(v) > 0 {
			return v[0]
		}
		return ""
	}
	return Call{get("criproxy-point"), get("criproxy-id"), get("criproxy-parent"), get("criproxy-code"), get("criproxy-message")}
}
