package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/go-logr/logr"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/director/dial"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/server"
)

// reflectTime is how long tap waits for the server's description of its messages.
const reflectTime = 2 * time.Second

// Tap is the subcommand that shows the calls between clients and one server of any gRPC API.
func Tap(ctx context.Context, args []string, out, errOut io.Writer) error {
	cfg := &config.Config{StateDir: "none", Hooks: "none"}
	l := &callView{}
	fs := subFlags("tap")
	l.flags(fs)
	connect := fs.String("connect", "", "the `PATH` of the server's socket")
	fs.StringVar(&cfg.Listen, "listen", "", "the `PATH` of the socket at which to listen for clients")
	fs.StringVar(&cfg.Admin, "admin", "", "the `PATH` of the socket for tail and dump; none opens no such socket (default beside -listen)")
	fs.IntVar(&cfg.FlightRecorder, "flight-recorder", 0, "record the latest calls in memory of this size, in `BYTES` (default 16777216)")
	fs.StringVar(&cfg.Capture.Path, "capture", "", "write all calls to `FILE`.jsonl, .pcapng (for Wireshark) or .binlog")
	fs.Int64Var(&cfg.Capture.MaxBytes, "capture-max-bytes", 0, "begin a new file of -capture after `BYTES`; -1 for no limit (default 67108864)")
	fs.IntVar(&cfg.Capture.MaxFiles, "capture-files", 0, "keep `N` files of -capture (default 5)")
	fs.BoolVar(&cfg.UnsafeRaw, "unsafe-raw", false, "record and show secrets as well")
	quiet := fs.Bool("quiet", false, "do not print the calls")
	about := "tap passes calls on to one server, of CRI or any other gRPC API, changes no message, and shows the calls."
	if err := cmp.Or(parseSub(fs, args, out, about, 0, 0), l.check("tap")); err != nil {
		return err
	}
	if *connect == "" || cfg.Listen == "" {
		return &UsageError{errors.New("tap needs -connect, the socket of the server, and -listen, the socket for clients")}
	}
	cfg.Backends = []config.Backend{{Address: *connect}}
	if err := server.Check(cfg); err != nil {
		return err
	}
	if cfg.FlightRecorder < 0 {
		return &UsageError{errors.New("tap: -flight-recorder is negative, so that nothing would be recorded and shown; leave it out")}
	}
	cfg.MaxMessageBytes = math.MaxInt32 // the two sides have their own limits
	shown, err := shownAPI(ctx, cfg, &l.schema, errOut)
	if err != nil {
		return err
	}
	p, err := server.New(cfg, server.Options{Shown: shown})
	if err != nil {
		return err
	}
	show := func(*capture.Follower) {}
	if !*quiet {
		h := p.Recording().Header()
		if err := l.open(&h, out); err != nil {
			p.Close()
			return err
		}
		if !l.printer.JSON {
			l.printer.Header()
		}
		show = func(f *capture.Follower) {
			var ev capture.Event
			for f.Next(context.Background(), &ev) == nil && l.add(&ev) == nil {
			}
		}
	}
	if err := p.Open(nil); err != nil {
		return err
	}
	f := p.Recording().Follow()
	var shows sync.WaitGroup
	shows.Go(func() { show(f) })
	defer shows.Wait() // the recorder ends with Run
	return p.Run(ctx)
}

// shownAPI returns what the messages of the server mean: those of CRI, of the flags, and of the
// server's own description.
func shownAPI(ctx context.Context, cfg *config.Config, flags *schemaFlags, errOut io.Writer) (*server.API, error) {
	profile, schema, err := flags.load(nil)
	if err != nil {
		return nil, err
	}
	own, err := flags.own()
	if err != nil {
		return nil, err
	}
	if reflected := reflectServer(ctx, cfg, errOut); reflected != nil {
		own, schema = own.Join(reflected), schema.Join(reflected)
	}
	return &server.API{Config: director.Config{Profile: profile, Schema: schema}, Own: own}, nil
}

// reflectServer asks the server to describe its messages, by gRPC's reflection. It returns nil if the server does not
// answer that.
func reflectServer(ctx context.Context, cfg *config.Config, errOut io.Writer) *codec.Schema {
	ctx, cancel := context.WithTimeout(ctx, reflectTime)
	defer cancel()
	conn, err := dial.New(dial.Config{Address: cfg.Backends[0].Address})
	if err != nil {
		return nil
	}
	defer conn.Close() // nothing is under way
	schema, err := codec.Reflect(ctx, conn)
	if err != nil && status.Code(err) != codes.Unimplemented {
		fmt.Fprintf(errOut, "criproxy: the server does not describe its messages: %s\n", status.Convert(err).Message())
	}
	return schema
}

// ErrorsOnly returns a log that writes only errors, to out.
func ErrorsOnly(out io.Writer) logr.Logger { return logr.New(errorsOnly{out}) }

type errorsOnly struct{ out io.Writer }

func (errorsOnly) Init(logr.RuntimeInfo)            {}
func (errorsOnly) Enabled(int) bool                 { return false }
func (errorsOnly) Info(int, string, ...any)         {}
func (e errorsOnly) WithValues(...any) logr.LogSink { return e }
func (e errorsOnly) WithName(string) logr.LogSink   { return e }
func (e errorsOnly) Error(err error, text string, _ ...any) {
	if err != nil {
		text = fmt.Sprintf("%s: %v", text, err)
	}
	fmt.Fprintf(e.out, "criproxy: %s\n", text)
}
