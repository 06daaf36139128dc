package fakecri

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ExecSync runs one of the built-in commands (see commands.go), each of which ends at once.
func (s runtimeService) ExecSync(_ context.Context, r *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	return answer(s.Runtime, s.named(r), func(c *container) (*runtimeapi.ExecSyncResponse, error) {
		out, err := c.output(r.GetCmd())
		if err != nil {
			return nil, status.Errorf(codes.Unknown, "executing in container %q: %v", c.id, err)
		}
		return &runtimeapi.ExecSyncResponse{Stdout: []byte(out)}, nil
	})
}

// streamURL returns the URL of a stream. No process listens there: a proxy passes on only the URL.
func (rt *Runtime) streamURL(what string) string {
	return rt.cfg.StreamURL + "/" + what + "/" + rt.newID()[:8]
}

func (s runtimeService) Exec(_ context.Context, r *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	return answer(s.Runtime, s.named(r), func(*container) (*runtimeapi.ExecResponse, error) {
		return &runtimeapi.ExecResponse{Url: s.streamURL("exec")}, nil
	})
}

func (s runtimeService) Attach(_ context.Context, r *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return answer(s.Runtime, s.named(r), func(*container) (*runtimeapi.AttachResponse, error) {
		return &runtimeapi.AttachResponse{Url: s.streamURL("attach")}, nil
	})
}

func (s runtimeService) PortForward(_ context.Context, r *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	return answer(s.Runtime, s.pods.named(r.GetPodSandboxId()), func(p *pod) (*runtimeapi.PortForwardResponse, error) {
		if !p.ready {
			return nil, status.Errorf(codes.Unknown, "sandbox %q is not running", p.id)
		}
		return &runtimeapi.PortForwardResponse{Url: s.streamURL("portforward")}, nil
	})
}

func hostname(config *runtimeapi.PodSandboxConfig) string {
	if config.GetHostname() != "" {
		return config.GetHostname()
	}
	return config.GetMetadata().GetName()
}
