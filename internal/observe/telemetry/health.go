package telemetry

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc/codes"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/internal/observe/admin"
)

// healthSource is a proxy that knows its health.
type healthSource interface{ Health() admin.Health }

// ServeMonitoring adds the paths for monitoring: /metrics, /healthz and /readyz.
func (m *Metrics) ServeMonitoring(mux *http.ServeMux, p healthSource) {
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.Registry, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		h := p.Health()
		if !h.Ready {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		if h.Stopping {
			fmt.Fprintln(w, "stopping")
		}
		if h.Unreachable != nil {
			fmt.Fprintln(w, h.Unreachable)
		}
		for _, b := range h.Backends {
			fmt.Fprint(w, b.Name, ": ", b.State)
			if b.Err != nil {
				fmt.Fprint(w, ": ", b.Err)
			}
			fmt.Fprintln(w)
		}
	})
}

// HealthService is grpc.health.v1 on the sockets of clients. Its services are "", which is ready
// when /readyz is, and the names of the backends; "primary" is the primary without a name.
type HealthService struct {
	healthgrpc.UnimplementedHealthServer
	Of healthSource
}

// watchInterval is how often Watch looks for a change.
const watchInterval = 500 * time.Millisecond

// states returns the status of each service.
func (h *HealthService) states() map[string]*healthgrpc.HealthCheckResponse {
	of := func(up bool) *healthgrpc.HealthCheckResponse {
		return &healthgrpc.HealthCheckResponse{Status: map[bool]healthgrpc.HealthCheckResponse_ServingStatus{true: healthgrpc.HealthCheckResponse_SERVING, false: healthgrpc.HealthCheckResponse_NOT_SERVING}[up]}
	}
	now := h.Of.Health()
	all := map[string]*healthgrpc.HealthCheckResponse{"": of(now.Ready)}
	for _, b := range now.Backends {
		all[b.Name] = of(b.IsUp())
	}
	return all
}

// Check returns the status of a service.
func (h *HealthService) Check(_ context.Context, request *healthgrpc.HealthCheckRequest) (*healthgrpc.HealthCheckResponse, error) {
	if r := h.states()[request.GetService()]; r != nil {
		return r, nil
	}
	return nil, status.Errorf(codes.NotFound, "criproxy: there is no backend %q", request.GetService())
}

// List returns the status of all services.
func (h *HealthService) List(context.Context, *healthgrpc.HealthListRequest) (*healthgrpc.HealthListResponse, error) {
	return &healthgrpc.HealthListResponse{Statuses: h.states()}, nil
}

// Watch sends the status of a service now, and whenever it changes. It ends when the client or the
// process does.
func (h *HealthService) Watch(request *healthgrpc.HealthCheckRequest, ss healthgrpc.Health_WatchServer) error {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	sent := healthgrpc.HealthCheckResponse_ServingStatus(-1)
	for {
		r := h.states()[request.GetService()]
		if r == nil {
			r = &healthgrpc.HealthCheckResponse{Status: healthgrpc.HealthCheckResponse_SERVICE_UNKNOWN}
		}
		if r.GetStatus() != sent {
			sent = r.GetStatus()
			if err := ss.Send(r); err != nil {
				return err
			}
		}
		select {
		case <-ss.Context().Done():
			return status.FromContextError(ss.Context().Err()).Err()
		case <-tick.C:
		}
	}
}
