package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/admin"
	"github.com/criproxy/criproxy/internal/capture"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/daemon"
	"github.com/criproxy/criproxy/internal/listen"
	"github.com/criproxy/criproxy/internal/recovery"
	"github.com/criproxy/criproxy/internal/telemetry"
)

// reflectTime is how long tap waits for a server to say what its messages are.
const reflectTime = 2 * time.Second

// Tap is the subcommand that only looks: one server of any gRPC API, behind a socket
// that shows what passes.
func Tap(ctx context.Context, args []string, out, errOut io.Writer) error {
	cfg := &config.Config{StateDir: "none"}
	l := &look{}
	fs := subFlags("tap")
	l.flags(fs)
	connect := fs.String("connect", "", "the `PATH` of the server's socket")
	fs.StringVar(&cfg.Listen, "listen", "", "the `PATH` of the socket that clients are to use instead")
	fs.StringVar(&cfg.Admin, "admin", "", "the `PATH` of the socket for tail and dump; none opens no such socket (default beside that of -listen)")
	fs.IntVar(&cfg.FlightRecorder, "flight-recorder", 0, "memory, in `BYTES`, in which the latest calls are recorded (default 8388608)")
	fs.StringVar(&cfg.Capture.Path, "capture", "", "write all calls to `FILE`.jsonl, .pcapng (for Wireshark) or .binlog")
	fs.Int64Var(&cfg.Capture.MaxBytes, "capture-max-bytes", 0, "begin a new file of -capture after `BYTES`; -1 never does (default 67108864)")
	fs.IntVar(&cfg.Capture.MaxFiles, "capture-files", 0, "keep `N` files of -capture (default 5)")
	fs.BoolVar(&cfg.UnsafeRaw, "unsafe-raw", false, "record and show secrets as well")
	quiet := fs.Bool("quiet", false, "do not print the calls")
	err := parseSub(fs, args, out, "tap stands before one server, of CRI or any other gRPC API, changes nothing, and shows what passes.", 0, 0)
	if err != nil {
		return err
	}
	if err := l.filter.Check(); err != nil {
		return &UsageError{err}
	}
	if *connect == "" || cfg.Listen == "" {
		return &UsageError{errors.New("tap needs -connect, the socket of the server, and -listen, the socket to be")}
	}
	cfg.Backends = []config.Backend{{Address: *connect}}
	if err := daemon.Check(cfg); err != nil {
		return err
	}
	if cfg.FlightRecorder < 0 {
		return &UsageError{errors.New("tap: without -flight-recorder there is nothing to see")}
	}
	t := &tapped{cfg: cfg}
	if err := t.build(ctx, &l.schema, errOut); err != nil {
		return err
	}
	defer t.conn.Close()
	show := func(*capture.Follower) {}
	if !*quiet {
		h := t.record.Header()
		if err := l.open(&h, out); err != nil {
			return err
		}
		if !l.json {
			l.printer.Header()
		}
		show = func(f *capture.Follower) {
			var ev capture.Event
			for f.Next(context.Background(), &ev) == nil && l.add(&ev) == nil {
			}
		}
	}
	return t.run(ctx, show)
}

// tapped is a server that is looked at.
type tapped struct {
	cfg    *config.Config
	conn   *director.Conn
	record *telemetry.Recording
	server *grpc.Server
	admin  *admin.Server
}

func (t *tapped) build(ctx context.Context, flags *schemaFlags, errOut io.Writer) error {
	profile, schema, err := flags.load(nil)
	if err != nil {
		return err
	}
	own, err := flags.own()
	if err != nil {
		return err
	}
	if reflected := t.reflect(ctx, errOut); reflected != nil {
		own, schema = own.Join(reflected), schema.Join(reflected)
	}
	t.record = &telemetry.Recording{Cfg: t.cfg, Profile: profile, Schema: schema}
	if len(own.Methods()) > 0 {
		t.record.Descriptors = own.Descriptors()
	}
	if err := t.record.Open(); err != nil {
		return err
	}
	t.conn, err = director.NewConn(director.ConnConfig{
		Address: t.cfg.Backends[0].Address, MaxMessage: math.MaxInt32, Primary: true, Tracer: t.record.Tracer(),
	})
	if err != nil {
		return err
	}
	d, err := director.New(director.Config{Backends: []director.Backend{{Conn: t.conn}}, Tracer: t.record.Tracer(), Panicked: recovery.Report})
	if err != nil {
		return err
	}
	t.server = grpc.NewServer(
		grpc.ForceServerCodecV2(codec.Raw),
		grpc.UnknownServiceHandler(d.Handler()),
		grpc.MaxRecvMsgSize(math.MaxInt32),
		grpc.Creds(listen.Credentials{TransportCredentials: insecure.NewCredentials()}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
	)
	t.admin = admin.New(nil, nil, t.record.ServeEvents)
	return nil
}

// reflect asks the server what its messages are; nil if it does not tell.
func (t *tapped) reflect(ctx context.Context, errOut io.Writer) *codec.Schema {
	ctx, cancel := context.WithTimeout(ctx, reflectTime)
	defer cancel()
	conn, err := director.NewConn(director.ConnConfig{Address: t.cfg.Backends[0].Address})
	if err != nil {
		return nil
	}
	defer conn.Close()
	schema, err := codec.Reflect(ctx, conn)
	if err != nil && status.Code(err) != codes.Unimplemented {
		fmt.Fprintf(errOut, "criproxy: the server does not say what its messages are: %s\n", status.Convert(err).Message())
	}
	return schema
}

// run serves until ctx ends, with show in a goroutine of its own.
func (t *tapped) run(ctx context.Context, show func(*capture.Follower)) error {
	listener, err := listen.Open(t.cfg.Sockets()[0], t.cfg.Backends[0].Address, nil)
	if err != nil {
		return err
	}
	if t.cfg.Admin != "" {
		if t.admin.Listener, err = listen.Unix(t.cfg.Admin, admin.Mode, "-admin"); err != nil {
			listener.Close()
			return err
		}
	}
	stopRecording, err := t.record.Start()
	if err != nil {
		listener.Close()
		t.admin.Close()
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stopRecording()
	f := t.record.Rec.Follow(true)
	wg.Go(func() { show(f) })
	defer t.admin.Start()()
	served := make(chan error, 1)
	go func() { served <- t.server.Serve(listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("serving %s: %w", t.cfg.Listen, err)
	case <-ctx.Done():
	}
	hurry := time.AfterFunc(time.Second, t.server.Stop)
	defer hurry.Stop()
	t.server.GracefulStop()
	<-served
	return nil
}
