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
	"google.golang.org/grpc/keepalive"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/observe/replay"
	"github.com/criproxy/criproxy/internal/profile"
	"github.com/criproxy/criproxy/internal/server/listen"
)

// Fixture is the subcommand that answers calls as a recorded runtime did.
func Fixture(ctx context.Context, args []string, out, _ io.Writer) error {
	fs := subFlags("fixture")
	path := fs.String("listen", "", "the `PATH` of the socket to answer at")
	speed := fs.Float64("speed", 0, "answer `N` times faster than the recorded server; 0 answers at once")
	backend := fs.String("backend", "", "answer as backend `NAME` answered criproxy, instead of as criproxy answered clients; a primary without a name is called primary")
	quiet := fs.Bool("quiet", false, "do not print the calls")
	var flags schemaFlags
	flags.flags(fs)
	err := parseSub(fs, args, out, `fixture FILE -listen SOCKET answers calls from a recording, without a runtime, until Ctrl-C. It looks
for a recorded call with the same method and request; if there is none, it takes the next recorded
call of the method.`, 1, 1)
	if err != nil {
		return err
	}
	if *path == "" {
		return &UsageError{errors.New("fixture: -listen is missing; it is the socket at which to answer")}
	}
	if err := checkSpeed("fixture", *speed); err != nil {
		return err
	}
	p, err := openPlayed(fs.Arg(0), *backend, &flags)
	if err != nil {
		return err
	}
	count := &playedCount{out: out, quiet: *quiet}
	f := replay.NewFixture(replay.FixtureConfig{
		Calls: p.calls, Schema: p.schema, Redact: p.redactor, Speed: *speed, Report: count.add,
		Changes: func(method string) bool { return p.profile.LogLevel(method) == profile.StateChanging },
	})
	s := grpc.NewServer(
		grpc.ForceServerCodecV2(codec.Raw), grpc.UnknownServiceHandler(f.Handler()), grpc.MaxRecvMsgSize(math.MaxInt32),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
	)
	l, err := listen.Unix(*path, admin.Mode, "-listen")
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	if !*quiet {
		fmt.Fprintf(out, "%s, answered at %s\n", capture.Count(len(p.calls), "recorded call"), *path)
	}
	select {
	case err := <-served:
		return fmt.Errorf("serving %s: %w", *path, err)
	case <-ctx.Done():
	}
	s.Stop()
	<-served
	count.sum(f.Left())
	return nil
}

// playedCount counts and prints how calls were answered. It is safe for concurrent use.
type playedCount struct {
	out   io.Writer
	quiet bool

	mu                   sync.Mutex
	equal, others, never int
}

func (c *playedCount) add(p replay.Played) {
	c.mu.Lock()
	defer c.mu.Unlock()
	how := fmt.Sprintf("as call %d", p.Call)
	switch {
	case p.Call == 0:
		c.never++
		how = "was not recorded"
	case p.Equal:
		c.equal++
	default:
		c.others++
		how += ", whose request differs"
	}
	if !c.quiet {
		fmt.Fprintf(c.out, "%-26s %s  %s\n", calls.Sanitize(calls.ShortMethod(p.Method)), p.Code, how)
	}
}

func (c *playedCount) sum(left []*replay.Call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.quiet {
		return
	}
	fmt.Fprintf(c.out, "%s: %d matched by request, %d by sequence, %d not recorded; recorded and not made: %s\n",
		capture.Count(c.equal+c.others+c.never, "call"), c.equal, c.others, c.never, capture.Count(len(left), "call"))
}
