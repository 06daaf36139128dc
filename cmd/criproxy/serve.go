package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/director"
)

// drainTime is how long calls under way may take to finish when we stop.
const drainTime = 5 * time.Second

// serve is the subcommand that stands between kubelet and the runtimes.
func serve(ctx context.Context, args []string, out, _ io.Writer) error {
	fs, f := newFlags()
	if err := f.parse(fs, args, out); err != nil {
		return err
	}
	cfg, err := f.readConfig()
	if err != nil {
		return err
	}
	for _, w := range cfg.warnings() {
		klog.Warning(w)
	}
	if f.given["apiserver"] {
		klog.InfoS("The flag -apiserver is ignored: nothing here talks to the API server")
	}
	p, err := newProxy(cfg)
	if err != nil {
		return err
	}
	l, err := listen(cfg.Listen)
	if err != nil {
		p.close()
		return err
	}
	klog.InfoS("Serving", "socket", cfg.Listen, "backends", len(cfg.Backends), "version", version)
	return p.run(ctx, l)
}

// proxy is a director with its connections and its server.
type proxy struct {
	director *director.Director
	conns    []*director.Conn
	server   *grpc.Server
}

// newProxy builds all of it, and starts nothing.
func newProxy(cfg *Config) (*proxy, error) {
	dcfg, err := criadapter.Config(cfg.options())
	if err != nil {
		return nil, err
	}
	dcfg.MaxMessage = cfg.MaxMessageBytes
	p := &proxy{}
	for _, b := range cfg.Backends {
		conn, err := director.NewConn(director.ConnConfig{
			Name:        b.Name,
			Address:     b.Address,
			Profile:     dcfg.Profile,
			Schema:      dcfg.Schema,
			Conversions: dcfg.Conversions,
			MaxMessage:  cfg.MaxMessageBytes,
			Watch:       watch(b),
		})
		if err != nil {
			p.close()
			return nil, err
		}
		p.conns = append(p.conns, conn)
		dcfg.Backends = append(dcfg.Backends, director.Backend{
			Name: b.Name,
			Conn: conn,
			Maps: map[string]map[string]string{criadapter.Handlers: b.Handlers},
		})
	}
	if p.director, err = director.New(dcfg); err != nil {
		p.close()
		return nil, err
	}
	p.server = grpc.NewServer(
		grpc.ForceServerCodecV2(codec.Raw),
		grpc.UnknownServiceHandler(p.director.Handler()),
		grpc.MaxRecvMsgSize(cfg.MaxMessageBytes),
		grpc.StreamInterceptor(logFailures),
		// Whatever keepalive a client likes: the socket is local.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
	)
	return p, nil
}

// close releases what newProxy made, if it is not run.
func (p *proxy) close() {
	for _, c := range p.conns {
		_ = c.Close()
	}
}

// run serves l until ctx ends, lets the calls under way finish for a while, and
// returns when all it started has ended.
func (p *proxy) run(ctx context.Context, l net.Listener) error {
	connected, disconnect := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer disconnect()
	for _, c := range p.conns {
		wg.Go(func() { _ = c.Run(connected) })
	}
	served := make(chan error, 1)
	go func() { served <- p.server.Serve(l) }()
	select {
	case err := <-served:
		return fmt.Errorf("serving: %w", err)
	case <-ctx.Done():
	}
	klog.InfoS("Stopping", "drain", drainTime)
	hurry := time.AfterFunc(drainTime, p.server.Stop) // event streams never finish by themselves
	p.server.GracefulStop()
	hurry.Stop()
	if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serving: %w", err)
	}
	return nil
}

// watch logs once for each change of a backend's state.
func watch(b BackendConfig) func(error) {
	name := director.Backend{Name: b.Name}.String()
	return func(err error) {
		switch {
		case err == nil:
			klog.InfoS("Backend is reachable", "backend", name, "socket", b.Address)
		case errors.Is(err, os.ErrNotExist):
			klog.ErrorS(nil, "Backend is not there yet: its socket does not exist; connecting as soon as it does", "backend", name, "socket", b.Address)
		default:
			klog.ErrorS(err, "Backend cannot be reached; trying on", "backend", name, "socket", b.Address)
		}
	}
}

// logFailures logs calls that fail, at level 2.
func logFailures(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if !klog.V(2).Enabled() {
		return handler(srv, ss)
	}
	began := time.Now()
	err := handler(srv, ss)
	if err != nil {
		s := status.Convert(err)
		klog.V(2).InfoS("Call failed", "method", info.FullMethod, "code", s.Code(), "message", s.Message(), "took", time.Since(began))
	}
	return err
}
