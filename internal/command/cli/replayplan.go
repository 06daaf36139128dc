package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/term"
	"google.golang.org/grpc/codes"

	"github.com/criproxy/criproxy/internal/base/host"
	"github.com/criproxy/criproxy/internal/cri"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/observe/replay"
	"github.com/criproxy/criproxy/internal/observe/show"
)

// replayPlan selects the recorded calls to send.
type replayPlan struct {
	method string // patterns; empty selects all methods
	call   uint64 // the number of one call, even if it failed; zero for all
	failed bool   // also send calls that failed when recorded
	write  bool   // also send calls that change something

	send    []*replay.Call
	leftOut int // because they failed
}

// choose fills in send and leftOut.
func (p *replayPlan) choose(recorded []*replay.Call) {
	for _, c := range recorded {
		switch {
		case p.call != 0 && c.ID != p.call:
		case p.method != "" && !calls.MatchesMethod(p.method, c.Method):
		case !p.failed && p.call == 0 && c.Ended && c.Code != codes.OK && c.Code != codes.Canceled:
			p.leftOut++
		default:
			p.send = append(p.send, c)
		}
	}
}

// changes reports whether a method may change something: true unless it is known to only read.
func changes(method string) bool { return !cri.OnlyReads(method) }

// writes returns how many of the calls to send change something, and their methods.
func (p *replayPlan) writes() (n int, methods []string) {
	for _, c := range p.send {
		if changes(c.Method) {
			n++
			if name := calls.ShortMethod(c.Method); !slices.Contains(methods, name) {
				methods = append(methods, name)
			}
		}
	}
	return n, methods
}

// allow returns an error if the calls must not be sent to a socket: some change something, the
// user has not allowed that with -write, and no fixture serves it.
func (p *replayPlan) allow(socket string, errOut io.Writer) error {
	server, err := host.Serving(socket)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("replay: there is no socket at %s; start the server that is to get the calls, such as a runtime or criproxy fixture, or correct -to", socket)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("replay: no process serves %s; start the server that is to get the calls, such as a runtime or criproxy fixture, or correct -to", socket)
	case errors.As(err, new(*net.OpError)): // otherwise only the process is unknown
		return fmt.Errorf("replay: connecting to %s: %w", socket, err)
	}
	n, methods := p.writes()
	if n == 0 || p.write || isFixture(server.Args) {
		return nil
	}
	what := fmt.Sprintf("%d of %s would change something at %s: %s", n, capture.Count(len(p.send), "call"), socket, calls.Sanitize(strings.Join(methods, ", ")))
	if term.IsTerminal(int(os.Stdin.Fd())) && show.NewScreen(errOut).Width > 0 {
		fmt.Fprintf(errOut, "%s\nType the path of the socket to send them: ", what)
		line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
		if strings.TrimSpace(line) == socket {
			return nil
		}
	}
	return fmt.Errorf("%s; nothing was sent; -write sends them, -method selects other calls, and -dry-run shows which calls would be sent", what)
}

// isFixture reports whether a process is a fixture, as its command line says. Nothing is asked of it: it may be a runtime,
// which knows no method of ours, or a criproxy in front of one. If the process cannot be seen, the answer is no.
func isFixture(args []string) bool {
	return len(args) > 1 && strings.Contains(filepath.Base(args[0]), "criproxy") && args[1] == "fixture"
}

// show prints the calls to send.
func (p *replayPlan) show(out *show.Screen) {
	var table show.Table
	for _, c := range p.send {
		what := "reads"
		if changes(c.Method) {
			what = "changes"
		}
		why := c.Unfit()
		if why != "" {
			why = "cannot be sent: " + why
		}
		table.Row("CALL", fmt.Sprint(c.ID), "METHOD", calls.ShortMethod(c.Method), "WHAT", what, "", why)
	}
	out.Table(&table)
	n, _ := p.writes()
	out.Say(0, "%s: %d to change something, %d to read; left out, with an error in the recording: %d.", capture.Count(len(p.send), "call"), n, len(p.send)-n, p.leftOut)
}
