package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc/codes"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/internal/lastknown"
)

// ready reports whether calls are answered: we serve, can be connected to, and the primary
// is up. The other backends are not asked: without them the node does what it can.
func (p *proxy) ready() bool {
	state, _, _ := p.backends()[0].state()
	return isThere(state) && !p.draining.Load() && p.unreachable() == nil
}

// isThere reports whether a backend in this state takes calls.
func isThere(state string) bool {
	return state == lastknown.Up.String() || state == lastknown.Slow.String()
}

// serveMonitoring adds what monitoring asks for: metrics, and whether we are well.
func serveMonitoring(mux *http.ServeMux, p *proxy) {
	mux.Handle("GET /metrics", promhttp.HandlerFor(p.metrics.registry, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !p.ready() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		if p.draining.Load() {
			fmt.Fprintln(w, "stopping")
		}
		if err := p.unreachable(); err != nil {
			fmt.Fprintln(w, err)
		}
		for _, b := range p.backends() {
			state, _, err := b.state()
			fmt.Fprint(w, b, ": ", state)
			if err != nil {
				fmt.Fprint(w, ": ", err)
			}
			fmt.Fprintln(w)
		}
	})
}

// servePprof adds what go tool pprof asks for.
func servePprof(mux *http.ServeMux) {
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
}

// healthService is grpc.health.v1 on the sockets of clients. Its services are "", which is
// what /readyz says, and the names of the backends; the one without a name is "primary".
type healthService struct {
	healthgrpc.UnimplementedHealthServer
	proxy *proxy
}

// watchInterval is how often a watched state is looked at.
const watchInterval = 500 * time.Millisecond

// states are all services, and how they are.
func (h *healthService) states() map[string]*healthgrpc.HealthCheckResponse {
	of := func(up bool) *healthgrpc.HealthCheckResponse {
		if up {
			return &healthgrpc.HealthCheckResponse{Status: healthgrpc.HealthCheckResponse_SERVING}
		}
		return &healthgrpc.HealthCheckResponse{Status: healthgrpc.HealthCheckResponse_NOT_SERVING}
	}
	all := map[string]*healthgrpc.HealthCheckResponse{"": of(h.proxy.ready())}
	for _, b := range h.proxy.backends() {
		state, _, _ := b.state()
		all[b.String()] = of(isThere(state))
	}
	return all
}

// Check is for clients.
func (h *healthService) Check(_ context.Context, request *healthgrpc.HealthCheckRequest) (*healthgrpc.HealthCheckResponse, error) {
	if r := h.states()[request.GetService()]; r != nil {
		return r, nil
	}
	return nil, status.Errorf(codes.NotFound, "criproxy: there is no backend %q", request.GetService())
}

// List is for clients.
func (h *healthService) List(context.Context, *healthgrpc.HealthListRequest) (*healthgrpc.HealthListResponse, error) {
	return &healthgrpc.HealthListResponse{Statuses: h.states()}, nil
}

// Watch is for clients. It lasts as long as they want, or until we stop.
func (h *healthService) Watch(request *healthgrpc.HealthCheckRequest, ss healthgrpc.Health_WatchServer) error {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	told := healthgrpc.HealthCheckResponse_ServingStatus(-1)
	for {
		r := h.states()[request.GetService()]
		if r == nil {
			r = &healthgrpc.HealthCheckResponse{Status: healthgrpc.HealthCheckResponse_SERVICE_UNKNOWN}
		}
		if r.GetStatus() != told {
			told = r.GetStatus()
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
