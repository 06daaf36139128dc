package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// Tail is the subcommand that shows calls as they happen.
func Tail(ctx context.Context, args []string, out, errOut io.Writer) error {
	l := &callView{}
	fs := subFlags("tail")
	l.flags(fs)
	var asked nodeFlags
	asked.flags(fs)
	all := fs.Bool("past", false, "show all calls recorded so far")
	last := fs.Int("last", 0, "show the latest `N` calls recorded so far")
	follow := fs.Bool("follow", false, "with -past, -last or -since: also show the calls from now on, until Ctrl-C")
	asked.ofPods(fs)
	var since unitDuration
	fs.Var(&since, "since", "show the recorded calls of the last `TIME`, such as 5m")
	if err := cmp.Or(parseSub(fs, args, out, `tail shows the calls of a running criproxy as they happen, until Ctrl-C; of several nodes, in the order of
time. With -past, -last or -since it shows recorded calls instead, and ends; with -follow it then goes on.
After POD, as in tail web-1, it shows only the calls in the life of these pods.`, 0, anyNumber), l.check("tail")); err != nil {
		return err
	}
	if *last < 0 || since < 0 {
		return &UsageError{errors.New("tail: -last and -since cannot be negative")}
	}
	pods, err := asked.pods(ctx, fs.Args(), errOut)
	if err != nil {
		return err
	}
	if len(pods) > 0 {
		l.filter.FollowPod = strings.Join(pods, ",")
	}
	nodes, err := asked.chosen(ctx)
	if err != nil {
		return err
	}
	look := past{none: !*all && *last == 0 && since == 0, last: *last}
	look.ends = !look.none && !*follow
	if since > 0 {
		look.since = time.Now().Add(-time.Duration(since))
	} else if *last > 0 {
		look.asked = uint64(max(*last, 100)) * perCall
	}
	if asked.several() {
		return l.tailAll(ctx, &asked, nodes, look, out, errOut)
	}
	of := "calls"
	if look.ends {
		of = "recorded calls"
	} else if !look.none {
		look.over = sync.OnceValue(func() error {
			err := l.release(l.unmatchedLive)
			if err == nil {
				l.none(errOut, "recorded calls")
			}
			return err
		})
	}
	client := admin.NewClient(nodes[0].Address)
	response, err := client.Get(ctx, l.asks(look))
	if err != nil {
		return err
	}
	ended, err := l.tail(ctx, client, response, look, out, func() {
		fmt.Fprintln(errOut, "criproxy: another process has taken over; its calls follow")
	})
	if ended {
		fmt.Fprintln(errOut, "criproxy: the criproxy at", nodes[0].Address, "has stopped")
	}
	if err == nil {
		l.none(errOut, of)
	}
	return err
}

// tail shows the calls of one criproxy. It reports whether that has ended, and calls next when another process has taken
// over.
func (l *callView) tail(ctx context.Context, client *admin.Client, response *http.Response, look past, out io.Writer, next func()) (ended bool, err error) {
	l.changes = map[capture.ChangeKey]bool{}
	for first := true; ; {
		err := l.follow(response, look, first, out)
		if ctx.Err() != nil {
			return false, nil // Ctrl-C
		}
		if err == nil && look.ends {
			err = l.present()
		}
		if errors.Is(err, errShort) {
			times := further
			if l.past.sure > 0 {
				times = min(max(3*look.last/(2*l.past.sure), 2), further)
			}
			look.asked, look.more = uint64(times)*look.asked, true
			l.seen, l.shown, l.changes = 0, 0, map[capture.ChangeKey]bool{}
			if response, err = client.Get(ctx, l.asks(look)); err != nil {
				return false, err
			}
			continue
		}
		l.past.asked = 0 // what came is all that comes
		if look.ends {
			if errors.Is(err, io.ErrUnexpectedEOF) {
				err = fmt.Errorf("the criproxy at %s ended while it sent its calls, as in a handover: the latest are not here", response.Request.URL.Host)
			}
			return false, cmp.Or(err, l.present(), l.release(l.unmatched))
		}
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			return false, err
		}
		if err := l.present(); err != nil {
			return false, err
		}
		if response = reconnect(ctx, client, l.asks(past{})); response == nil {
			return ctx.Err() == nil, nil
		}
		next()
		first, look = false, past{none: true, again: true, over: look.over}
	}
}

// To show the latest calls, tail asks for perCall events for each of them, and for up to further times as many if these show
// too few.
const (
	perCall = 20
	further = 8
)

// A call that takes longer may be shown without its beginning or its names, unless all that is recorded was asked for.
const longCall = 10 * time.Minute

// delay is how long a process may take to get a request.
const delay = 30 * time.Second

// askSince asks for the calls of the latest time, and for what one must know of the time before to show them.
func askSince(q url.Values, since time.Duration) {
	q.Set("since", (since + longCall).String())
	q.Set("shown", (since + delay).String())
}

// asks returns the path of the events that follow looks at, and those of calls that were under way before.
func (l *callView) asks(look past) string {
	q := url.Values{}
	if !look.ends {
		q.Set("follow", "true")
	}
	switch {
	case look.none:
		q.Set("since", time.Minute.String())
	case !look.since.IsZero():
		askSince(q, time.Since(look.since))
	case look.asked > 0:
		q.Set("last", strconv.FormatUint(look.asked, 10))
	}
	// Version 1.0 separates patterns only by |, and does not know Service/Method.
	if m := l.filter.Method; !look.none && m != "" && !strings.HasPrefix(m, "!") && !strings.Contains(m, "/") {
		q.Set("method", strings.ReplaceAll(m, ",", "|"))
	}
	if !look.none && l.filter.OnlyFailed() {
		q.Set("failed", "true")
	}
	f := &l.filter
	about := f.Pod != "" || f.FollowPod != "" || f.Namespace != "" || f.Container != ""
	if about && look.ends { // what comes is far more than what is shown
		q.Set("blocks", "1")
	}
	switch {
	case l.printer.Full || l.printer.Changes:
	case about: // a list of all has none
		q.Set("large", "new")
	default:
		q.Set("large", "clients")
	}
	return "/events?" + q.Encode()
}

// tailAll shows the calls of several nodes in the order of time.
func (l *callView) tailAll(ctx context.Context, asked *nodeFlags, nodes []admin.Node, look past, out, errOut io.Writer) error {
	wide := width(nodes)
	titles := l.printer
	titles.Out, titles.Wide = l.output.lines(out), wide
	switch {
	case titles.JSON:
	case look.ends:
		titles.LateHeader()
	default:
		titles.Header()
	}
	story := &merger{out: titles.Out}
	if !look.none {
		story.await(nodes)
	}
	var counting sync.Mutex
	err := story.merge(ctx, func(ctx context.Context) error {
		return asked.stream(ctx, nodes, story, errOut, func(ctx context.Context, n *teller) error {
			response, err := n.client.Get(ctx, l.asks(look))
			if err != nil {
				return err
			}
			n.connected()
			one, look := *l, look
			one.story, one.printer.Node, one.printer.Wide, one.printer.Off = story, n.Name, wide, n.client.ClockOff()
			one.known = nil
			look.over = sync.OnceValue(func() error {
				n.caughtUp()
				return one.release(one.unmatchedLive)
			})
			if !look.since.IsZero() {
				look.since = look.since.Add(one.printer.Off)
			}
			ended, err := one.tail(ctx, n.client, response, look, story, func() {
				fmt.Fprintf(errOut, "criproxy: %s: another process has taken over\n", n.Name)
			})
			counting.Lock()
			defer counting.Unlock()
			l.seen, l.shown = l.seen+one.seen, l.shown+one.shown
			if ended {
				err = errors.New("its criproxy has stopped")
			}
			return err
		})
	})
	l.none(errOut, "calls")
	return err
}

// follow shows the events in the answer of a process until the answer ends. Of what the process has inherited from the
// one before it, follow shows only what it has not shown yet.
func (l *callView) follow(response *http.Response, look past, first bool, out io.Writer) error {
	defer response.Body.Close() // it is read to its end, or no longer needed
	r, err := capture.NewReader(response.Body)
	if err != nil {
		return err
	}
	latest, at, begun := l.latest, l.at, l.printer.Out
	if err := l.open(r.Header(), out); err != nil {
		return err
	}
	if look.more {
		l.printer.Out = begun // it has what comes before the calls
	}
	if oldest := admin.Number(response, admin.OldestHeader); oldest == 0 || admin.Number(response, admin.RecordedHeader) < oldest+look.asked {
		look.asked = 0 // it is all that there is
	}
	from := admin.RecordedHeader
	if first {
		l.began = r.Header().Created
	} else { // what the process before this one recorded after it had passed on its recording has the same numbers
		from = admin.InheritedHeader
	}
	look.until = admin.Number(response, from)
	if first && look.none {
		if err := l.unmatchedLive(); err != nil {
			return err
		}
	}
	if first && !look.more && l.story == nil {
		titles := !l.printer.JSON
		if titles && look.ends {
			l.printer.LateHeader()
		}
		if look.ends || l.unmatchedLive() != nil {
			l.holdBack()
		}
		if titles && !look.ends {
			l.printer.Header()
		}
	}
	switch {
	case first && !look.more && !l.printer.JSON:
		l.trouble(r.Header())
	case !first:
		look.until, look.passed = min(look.until, latest), at
	}
	if l.past = look; look.over != nil && (look.none || look.until == 0) {
		if err := look.over(); err != nil {
			return err
		}
	}
	return l.read(r)
}

// trouble shows which runtimes are not up now.
func (l *callView) trouble(h *capture.FileHeader) {
	for _, b := range h.Backends {
		c := &capture.Change{Time: b.Since, What: b.State, Backend: b.Name, Why: b.Why}
		if b.State != "" && b.State != capture.Up && l.filter.MatchChange(c) {
			l.printer.Now(c)
		}
	}
}

// reconnectTime is how long commands wait for another process to take over.
const reconnectTime = 5 * time.Second

// reconnect asks the process that has taken over for a path of its admin socket. The answer is nil if there is none.
func reconnect(ctx context.Context, client *admin.Client, path string) *http.Response {
	for until := time.Now().Add(reconnectTime); time.Now().Before(until) && ctx.Err() == nil; pause(ctx, 100*time.Millisecond) {
		if response, err := client.Get(ctx, path); err == nil {
			return response
		}
	}
	return nil
}
