package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/reflect/protoreflect"

	text "github.com/criproxy/criproxy/internal/base/dump"
	"github.com/criproxy/criproxy/internal/cri"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/observe/replay"
	"github.com/criproxy/criproxy/internal/observe/show"
)

// played is a recording to play, as the client or as the server.
type played struct {
	*meaning
	calls    []*replay.Call
	redactor *capture.Redactor // nil if the recording has secrets
}

// openPlayed reads the calls of a file: those of clients, or those to the backend of that name.
func openPlayed(path, backend string, flags *schemaFlags) (*played, error) {
	r, err := capture.Open(path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	p := &played{}
	if p.meaning, err = flags.meaning(r.Header()); err != nil {
		return nil, err
	}
	if !p.text.Unsafe {
		p.redactor = capture.NewRedactor(p.schema, p.text.Secrets)
	}
	if p.calls, err = replay.Load(r, backend); err != nil {
		err = fmt.Errorf("%s: %w", path, err)
		if errors.Is(err, replay.ErrNoBackend) {
			err = &UsageError{err}
		}
		return nil, err
	}
	return p, nil
}

// unmatched returns an error about a pattern for methods that matches none of the API or of the recording.
func (p *played) unmatched(patterns string) error {
	var methods []string
	for _, m := range p.schema.Methods() {
		methods = append(methods, m.Name)
	}
	for _, c := range p.calls {
		methods = append(methods, c.Method)
	}
	return calls.UnmatchedMethod(patterns, methods)
}

func (p *played) given(fd protoreflect.FieldDescriptor) bool {
	return p.names.Given(fd) || replay.LooksLikeID(fd)
}

// checkSpeed returns an error if the value of -speed is invalid.
func checkSpeed(command string, speed float64) error {
	if speed < 0 || math.IsNaN(speed) || math.IsInf(speed, 0) {
		return &UsageError{fmt.Errorf("%s: -speed is how many times faster than recorded to play: want a number such as 10, or 0 for no waiting", command)}
	}
	return nil
}

// ReplayCalls is the subcommand that sends recorded calls again.
func ReplayCalls(ctx context.Context, args []string, out, errOut io.Writer) error {
	fs := subFlags("replay")
	to := fs.String("to", "", "the `PATH` of the socket to send the calls to")
	var plan replayPlan
	fs.BoolVar(&plan.write, "write", false, "also send calls that change something to a server that is not a fixture")
	fs.BoolVar(&plan.failed, "failed", false, "also send calls that failed when they were recorded")
	fs.StringVar(&plan.method, "method", "", "only send calls of methods whose name matches `PATTERN`, such as 'List*|*Status', or with a / their service and name, such as 'ImageService/*'")
	fs.Uint64Var(&plan.call, "call", 0, "only send the call with this `NUMBER`, even if it failed when it was recorded")
	dry := fs.Bool("dry-run", false, "show which calls would be sent, and send none")
	speed := fs.Float64("speed", 1, "play `N` times faster than recorded; 0 waits only for earlier calls to end")
	backend := fs.String("backend", "", "send the calls that backend `NAME` got, instead of those that clients made; a primary without a name is called primary")
	var output outputFlags
	output.lineFlags(fs)
	var flags schemaFlags
	flags.flags(fs)
	err := cmp.Or(parseSub(fs, args, out, `replay FILE -to SOCKET sends the recorded calls of clients again, and shows how the answers differ.
In later requests it replaces recorded ids with those that the server gives now. It sends calls that
change something only to a fixture, unless you give -write.`, 1, 1), output.check("replay"))
	if err != nil {
		return err
	}
	if err := (&calls.Filter{Method: plan.method}).Check(); err != nil {
		return &UsageError{fmt.Errorf("replay: %w", err)}
	}
	if *to == "" && !*dry {
		return &UsageError{errors.New("replay: -to is missing; it is the socket to send the calls to")}
	}
	if err := checkSpeed("replay", *speed); err != nil {
		return err
	}
	p, err := openPlayed(fs.Arg(0), *backend, &flags)
	if err != nil {
		return err
	}
	if err := p.unmatched(plan.method); err != nil {
		return &UsageError{fmt.Errorf("replay: %w", err)}
	}
	plan.choose(p.calls)
	if *dry {
		plan.show(show.NewScreen(out))
		return nil
	}
	if len(plan.send) == 0 {
		return fmt.Errorf("%s: there is nothing to send: the flags select none of %s; left out, with an error in the recording: %d, and -failed sends such calls as well", fs.Arg(0), capture.Count(len(p.calls), "call"), plan.leftOut)
	}
	if err := plan.allow(*to, errOut); err != nil {
		return err
	}
	cc, err := grpc.NewClient("unix:"+*to, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)))
	if err != nil {
		return err
	}
	defer cc.Close()
	report := printResult
	if output.programs() {
		report = func(out io.Writer, res replay.Result) {
			_ = json.NewEncoder(out).Encode(Replayed{res.Call.ID, res.Call.Method, res.Took, res.NotSent, res.Changes}) // fails when the reader has gone
		}
	}
	under := &progress{screen: show.NewScreen(errOut), all: len(plan.send)}
	began := time.Now()
	sum, err := replay.Run(ctx, replay.Config{
		Calls: plan.send, Conn: cc, Schema: p.schema, Text: p.text, Redact: p.redactor, Given: p.given, Volatile: cri.Volatile, Bare: p.names.Bare,
		Speed: *speed, Report: func(res replay.Result) { under.clear(); report(output.lines(out), res); under.one() },
	})
	under.clear()
	if sum.Redacted > 0 {
		fmt.Fprintf(errOut, "criproxy: sent without secrets, which the recording does not have: %s; record with -unsafe-raw to keep them\n", capture.Count(sum.Redacted, "call"))
	}
	if plan.leftOut > 0 {
		fmt.Fprintf(errOut, "criproxy: left out, with an error in the recording: %s; -failed sends such calls as well\n", capture.Count(plan.leftOut, "call"))
	}
	if !output.programs() {
		fmt.Fprintf(out, "%s in %s: %d answered as recorded, %d differently, %d not sent\n",
			capture.Count(len(plan.send), "call"), time.Since(began).Round(time.Millisecond), sum.Same, sum.Different, sum.NotSent+sum.Left)
	}
	if err != nil { // Ctrl-C
		unawaited := ""
		if sum.Unawaited > 0 {
			unawaited = fmt.Sprintf(", and of %d the answer not awaited", sum.Unawaited)
		}
		fmt.Fprintf(errOut, "criproxy: interrupted: of %s, %d not sent%s\n", capture.Count(len(plan.send), "call"), sum.Left, unawaited)
	}
	if err != nil || sum.Different+sum.NotSent > 0 {
		return ErrReported
	}
	return nil
}

// progress shows on a terminal how many calls are done.
type progress struct {
	screen    *show.Screen
	all, done int
}

func (p *progress) one() {
	if p.done++; p.screen.Width > 0 {
		fmt.Fprintf(p.screen.Out, "%d of %s", p.done, capture.Count(p.all, "call"))
	}
}

// clear makes room for other text.
func (p *progress) clear() {
	if p.screen.Width > 0 {
		fmt.Fprint(p.screen.Out, "\r\x1b[K")
	}
}

// printResult shows a call that was not answered as recorded.
func printResult(out io.Writer, res replay.Result) {
	if res.NotSent == "" && len(res.Changes) == 0 {
		return
	}
	fmt.Fprintf(out, "call %d  %s\n", res.Call.ID, calls.Sanitize(calls.ShortMethod(res.Call.Method)))
	if res.NotSent != "" {
		fmt.Fprintf(out, "    not sent: %s\n", res.NotSent)
	}
	for _, c := range res.Changes {
		fmt.Fprintf(out, "    < %s\n", c.Path)
		if c.Before != "" {
			fmt.Fprintf(out, "        - %s\n", calls.Sanitize(c.Before))
		}
		if c.After != "" {
			fmt.Fprintf(out, "        + %s\n", calls.Sanitize(c.After))
		}
	}
}

// Replayed is a replayed call as -o json prints it. The keys are stable.
type Replayed struct {
	Call    uint64        `json:"call"`
	Method  string        `json:"method"`
	Took    time.Duration `json:"took_ns"`
	NotSent string        `json:"not_sent,omitempty"`
	Changes []text.Change `json:"changes,omitempty"`
}
