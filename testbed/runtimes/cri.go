package runtimes

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	criclient "k8s.io/cri-client/pkg"

	"github.com/criproxy/criproxy/testbed/host"
)

// callTimeout bounds each call of the clients of Runtime and Images, as kubelet's runtimeRequestTimeout does.
const callTimeout = 30 * time.Second

// Dial returns a plain gRPC connection to a unix socket, for calls that the kubelet's client does not
// make. It connects on its first call. A call with one answer fails after a minute if its context has no deadline;
// one that waits for the runtime to be ready would wait for ever. The caller must close it.
func Dial(socket string, more ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix://"+socket, append(more,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			ctx, cancel := host.Bounded(ctx)
			defer cancel()
			return invoke(ctx, method, req, reply, cc, opts...)
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, MaxDelay: 200 * time.Millisecond},
			// The socket of a frozen daemon accepts connections and nothing more; the caller decides how long to wait.
			MinConnectTimeout: 20 * time.Second,
		}))...)
}

// Runtime returns the kubelet's own client for the runtime service at an endpoint (unix:///...), which
// may be a Containerd's or a proxy's. It fails if no server answers Version there. The caller must close
// the client.
func Runtime(ctx context.Context, endpoint string) (internalapi.RuntimeService, error) {
	return criclient.NewRemoteRuntimeServiceBuilder().WithEndpoint(endpoint).WithConnectionTimeout(callTimeout).Build(ctx)
}

// Images returns the kubelet's own client for the image service at an endpoint. The caller must close it.
func Images(ctx context.Context, endpoint string) (internalapi.ImageManagerService, error) {
	client, err := criclient.NewRemoteImageServiceBuilder().WithEndpoint(endpoint).WithConnectionTimeout(callTimeout).Build(ctx)
	if err != nil {
		return nil, err
	}
	return imageClient{client}, nil
}

// An imageClient is the kubelet's client, which bounds every call but PullImage. Its PullImage fails after a minute if the
// context has no deadline.
type imageClient struct {
	internalapi.ImageManagerService
}

func (c imageClient) PullImage(ctx context.Context, image *runtimeapi.ImageSpec, auth *runtimeapi.AuthConfig, config *runtimeapi.PodSandboxConfig) (string, error) {
	ctx, cancel := host.Bounded(ctx)
	defer cancel()
	return c.ImageManagerService.PullImage(ctx, image, auth, config)
}

// Runtime returns the kubelet's client for this instance. The caller must close it.
func (c *Containerd) Runtime(ctx context.Context) (internalapi.RuntimeService, error) {
	return Runtime(ctx, c.Endpoint())
}

// Images returns the kubelet's image client for this instance. The caller must close it.
func (c *Containerd) Images(ctx context.Context) (internalapi.ImageManagerService, error) {
	return Images(ctx, c.Endpoint())
}

// PIDOf returns the process id of a container from its runtime, or 0 if the container is not running.
func PIDOf(ctx context.Context, client internalapi.RuntimeService, container string) (int, error) {
	resp, err := client.ContainerStatus(ctx, container, true)
	if err != nil {
		return 0, err
	}
	var info struct{ Pid int }
	if err := json.Unmarshal([]byte(resp.GetInfo()["info"]), &info); err != nil {
		return 0, fmt.Errorf("testbed: reading the process id of container %s: %w", container, err)
	}
	return info.Pid, nil
}

// WaitReady waits until the instance answers Version and ListPodSandbox. It fails at once if the process
// has ended, with the end of its log, and after a minute if ctx has no deadline.
func (c *Containerd) WaitReady(ctx context.Context) error {
	return WaitReady(ctx, c.Process, c.Socket())
}

// WaitReady waits until a daemon answers Version and ListPodSandbox at a socket, like [Containerd.WaitReady]. It
// is for other daemons that speak CRI, such as criproxy.
func WaitReady(ctx context.Context, p host.Process, socket string) error {
	ctx, cancel := host.Bounded(ctx)
	defer cancel()
	conn, err := Dial(socket)
	if err != nil {
		return fmt.Errorf("testbed: dialing %s: %w", p.Title(), err)
	}
	defer conn.Close()
	client := runtimeapi.NewRuntimeServiceClient(conn)
	err = p.Await(ctx, "to answer at "+socket, func() error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if _, err := client.Version(ctx, &runtimeapi.VersionRequest{}); err != nil {
			return err
		}
		_, err := client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		return err
	})
	if err != nil {
		return fmt.Errorf("%w\n%s", err, p.LogTail(20))
	}
	return nil
}
