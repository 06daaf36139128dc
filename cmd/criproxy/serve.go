package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
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
	cfg.makeStateDir()
	p, err := newProxy(cfg)
	if err != nil {
		return err
	}
	l, err := listen(cfg.Listen)
	if err != nil {
		p.close()
		return err
	}
	if cfg.Admin == "" {
		klog.InfoS("There is no admin socket: criproxy's own commands cannot reach this process")
	} else if p.admin.listener, err = listenAs(cfg.Admin, adminMode, "-admin"); err != nil {
		l.Close()
		p.close()
		return err
	}
	klog.InfoS("Serving", "socket", cfg.Listen, "admin", cfg.Admin, "backends", len(cfg.Backends), "version", version)
	return p.run(ctx, l)
}

// proxy is a director with its backends and its server.
type proxy struct {
	director *director.Director
	backends []*backend
	server   *grpc.Server
	admin    *admin
}

// newProxy builds all of it, and starts nothing.
func newProxy(cfg *Config) (*proxy, error) {
	d, err := criadapter.Config(cfg.options())
	if err != nil {
		return nil, err
	}
	d.MaxMessage = cfg.MaxMessageBytes
	d.NativeNames = cfg.IDs == idsNative
	d.Withheld = logWithheld()
	p := &proxy{}
	for i := range cfg.Backends {
		b, err := newBackend(cfg, i, d)
		if err != nil {
			p.close()
			return nil, err
		}
		p.backends = append(p.backends, b)
		d.Backends = append(d.Backends, b.director())
	}
	if p.director, err = director.New(d); err != nil {
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
	p.admin = newAdmin(p)
	return p, nil
}

// close releases what newProxy made, if it is not run.
func (p *proxy) close() {
	for _, b := range p.backends {
		_ = b.conn.Close()
	}
}

// run serves l until ctx ends, lets the calls under way finish for a while, and
// returns when all it started has ended.
func (p *proxy) run(ctx context.Context, l net.Listener) error {
	connected, disconnect := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer disconnect()
	for _, b := range p.backends {
		wg.Go(func() { b.run(connected) })
	}
	if len(p.backends) > 1 {
		wg.Go(func() { watchDrivers(connected, p.backends) })
	}
	stopAdmin := p.admin.start()
	defer stopAdmin()
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

// logWithheld returns what logs, once for each backend, that credentials did not
// go along with a pull.
func logWithheld() func(director.Backend, string, string) {
	var told sync.Map
	return func(b director.Backend, method, name string) {
		if _, twice := told.LoadOrStore(b.Name, true); !twice {
			klog.InfoS("Credentials are not sent along: kubelet found them for the image with its prefix, and whoever the rest of the name belongs to need not be meant; allow it with credentials: true in the configuration of the backend",
				"backend", b, "image", name)
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
