package testkit

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/fakecri"
)

// A Machine is a runtime that a test can kill, freeze and start again.
type Machine struct {
	*fakecri.Runtime
	testing.TB
	name  string // of the backend; empty for the primary
	Path  string
	stop  func()
	fault atomic.Pointer[fakecri.Fault]
	Ice   atomic.Pointer[chan struct{}]
	Wire  *Wire // its connections; nil means ordinary sockets
}

func NewMachine(t testing.TB, name, path string, cfg fakecri.Config) *Machine {
	m := &Machine{TB: t, name: name, Path: path, stop: func() {}}
	m.Replace(cfg)
	t.Cleanup(func() { m.stop() })
	return m
}

// Replace puts an empty runtime into the machine. The machine must be stopped.
func (m *Machine) Replace(cfg fakecri.Config) {
	m.Runtime = fakecri.New(cfg)
	m.Fault(func(ctx context.Context, method string, request any) error {
		if ice := m.Ice.Load(); ice != nil {
			select {
			case <-*ice:
			case <-ctx.Done():
				return status.FromContextError(ctx.Err()).Err()
			}
		}
		if f := m.fault.Load(); f != nil {
			return (*f)(ctx, method, request)
		}
		return nil
	})
}

func (m *Machine) Start() {
	m.Helper()
	l, err := net.Listen("unix", m.Path)
	require.NoError(m, err)
	if m.Wire != nil {
		l = m.Wire.listen(l)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func(rt *fakecri.Runtime) { ended <- rt.ServeOn(ctx, l) }(m.Runtime)
	m.stop = sync.OnceFunc(func() {
		cancel()
		assert.NoError(m, <-ended)
	})
}

// Kill stops the runtime's server, like the end of its process. Pods, containers and images stay.
func (m *Machine) Kill() { m.stop() }

// Freeze makes all calls hang until Thaw.
func (m *Machine) Freeze() {
	ice := make(chan struct{})
	m.Ice.Store(&ice)
}

func (m *Machine) Thaw() {
	if ice := m.Ice.Swap(nil); ice != nil {
		close(*ice)
	}
}

// When makes the runtime call f before each call, instead of the previous f. Nil means none.
func (m *Machine) When(f fakecri.Fault) {
	if f == nil {
		m.fault.Store(nil)
		return
	}
	m.fault.Store(&f)
}

// Failing returns a fault that makes calls of the given methods fail, or of all if none are given.
func Failing(err error, methods ...string) fakecri.Fault {
	return On(func(context.Context, string, any) error { return err }, methods...)
}

// Hanging returns a fault that makes calls of the given methods hang, or of all if none are given.
func Hanging(methods ...string) fakecri.Fault {
	return On(func(ctx context.Context, _ string, _ any) error {
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}, methods...)
}

func On(f fakecri.Fault, methods ...string) fakecri.Fault {
	return func(ctx context.Context, method string, request any) error {
		if len(methods) == 0 {
			return f(ctx, method, request)
		}
		for _, m := range methods {
			if strings.HasSuffix(method, "/"+m) {
				return f(ctx, method, request)
			}
		}
		return nil
	}
}

func PodConfig(name string) *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata:    &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "default", Uid: "uid-" + name},
		Labels:      map[string]string{"pod": name, "app": strings.TrimRight(name, "0123456789")},
		Annotations: map[string]string{"kubernetes.io/config.seen": "seen-" + name, "kubernetes.io/config.hash": "hash-" + name},
	}
}

// Slowing returns a fault that delays calls of the given methods, or of all if none are given.
func Slowing(by time.Duration, methods ...string) fakecri.Fault {
	return On(func(ctx context.Context, _ string, _ any) error {
		select {
		case <-time.After(by):
			return nil
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}, methods...)
}

// Endless reports whether the streams of a method last until client or server ends them.
func Endless(method string) bool {
	return filepath.Base(method) == "GetContainerEvents" || method == healthgrpc.Health_Watch_FullMethodName
}
