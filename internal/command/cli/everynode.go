package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/show"
	"github.com/criproxy/criproxy/internal/observe/why"
)

// An errand is a command that each of several nodes runs, and whose JSON this process shows.
type errand struct {
	name string
	run  func(ctx context.Context, args []string, out, errOut io.Writer) error // for sockets of this node
	args []string
	here []string // more arguments on this node
	away []string // more arguments on another node
	in   []byte   // standard input there
}

// newErrand returns an errand with the flags and arguments of a command line, except those that choose nodes or the
// output, and those called without.
func newErrand(name string, run func(context.Context, []string, io.Writer, io.Writer) error, fs *flag.FlagSet, without ...string) errand {
	without = append(without, "admin", "node", "nodes", "l", "n", "context", "kubeconfig", "timeout", "o")
	return errand{name: name, run: run, args: append(givenFlags(fs, without...), fs.Args()...)}
}

// do runs the errand on one node.
func (e errand) do(ctx context.Context, n admin.Node, out io.Writer, more ...string) error {
	args := append(more, e.args...)
	if admin.IsRemote(n.Address) {
		return admin.Run(ctx, n.Address, bytes.NewReader(e.in), out, slices.Concat([]string{e.name}, e.away, args)...)
	}
	return e.run(ctx, slices.Concat([]string{"-admin=" + n.Address}, e.here, args), out, io.Discard)
}

// onEach runs an errand on all nodes of a query.
func onEach[T any](ctx context.Context, q show.Query, e errand) []show.Answer[T] {
	return show.Gather[T](ctx, q, func(ctx context.Context, n admin.Node) ([]byte, time.Duration, error) {
		var out bytes.Buffer
		err := e.do(ctx, n, &out, "-o=json")
		if out.Len() > 0 && ctx.Err() == nil {
			err = nil // it failed because of what it found
		}
		return out.Bytes(), 0, err
	})
}

// findingsOfAll runs an errand that finds things on all nodes, and shows each finding once, with the nodes that it is on.
func findingsOfAll(ctx context.Context, q show.Query, e errand) error {
	all := onEach[struct {
		Findings []why.Finding
		Seen     why.Seen
	}](ctx, q, e)
	if !q.People() {
		if err := show.EncodeAll(q, all); err != nil {
			return err
		}
	}
	type of struct{ text, cure string }
	places := map[of][]string{}
	var findings []why.Finding
	var limited []string
	clean, answered, lasts := 0, 0, false
	for _, a := range all {
		if a.Value == nil {
			continue
		}
		answered++
		if len(a.Value.Findings) == 0 {
			clean++
		}
		if a.Value.Seen.Limit != "" {
			limited = append(limited, a.Name)
		}
		for _, f := range a.Value.Findings {
			key := of{fmt.Sprintf("%s: %s", f.Level, f.Brief()), f.Cure}
			if places[key] == nil {
				findings = append(findings, f)
			}
			places[key] = append(places[key], a.Name)
			lasts = lasts || f.Lasts() && (e.name == "why" || f.Level == why.Error)
		}
	}
	why.Sort(findings)
	if q.People() {
		for _, f := range findings {
			key := of{fmt.Sprintf("%s: %s", f.Level, f.Brief()), f.Cure}
			q.Paint(colourOf(&f), 0, "%s: %s", show.Named(places[key]), key.text)
			if f.Cure != "" {
				q.Say(2, "%s", f.Cure)
			}
		}
		q.Say(0, "%d of %d nodes have no finding.", clean, len(all))
		if len(limited) > 0 {
			q.Say(0, "Not all calls of this time are recorded on %s.", show.Named(limited))
		}
	}
	err := show.Finish(q, all)
	if lasts {
		err = cmp.Or(err, ErrReported)
	}
	return err
}

// A teller is one of several nodes whose calls, or changes, a merger writes.
type teller struct {
	admin.Node
	client    *admin.Client
	connected func() // the node has answered
	caughtUp  func() // it has said all that happened before; a teller says so at its end
}

// stream calls run for each node, at the same time. A run calls connected as soon as the node answers; until then it
// belongs to the nodes that are asked at a time, and has the time of -timeout. stream returns when all have returned. Its
// error has those of the nodes.
func (n *nodeFlags) stream(ctx context.Context, nodes []admin.Node, story *merger, errOut io.Writer, run func(context.Context, *teller) error) error {
	var running sync.WaitGroup
	ended := make([]error, len(nodes))
	nodes = admin.EachNode(ctx, nodes, time.Duration(n.timeout), errOut, func(within context.Context, i int) error {
		ctx, cancel := context.WithCancel(ctx)
		connected, over := make(chan struct{}), make(chan struct{})
		one := &teller{Node: nodes[i], client: admin.NewClient(nodes[i].Address), caughtUp: sync.OnceFunc(story.caughtUp)}
		one.connected = sync.OnceFunc(func() {
			clockOff(errOut, one.Name, one.client.ClockOff())
			close(connected)
		})
		running.Go(func() {
			defer cancel()
			defer close(over)
			defer one.caughtUp()
			ended[i] = run(ctx, one)
		})
		select {
		case <-connected:
			return nil
		case <-over:
			return nil // ended has its error
		case <-within.Done():
			cancel()
			<-over
			return within.Err()
		}
	})
	running.Wait()
	for i := range nodes {
		nodes[i].Err = cmp.Or(nodes[i].Err, ended[i])
	}
	if ctx.Err() != nil {
		return nil // Ctrl-C
	}
	return admin.UnansweredBy(nodes)
}

// A merger writes what several nodes say in the order of time. Its methods may be called at once.
type merger struct {
	out io.Writer

	mu      sync.Mutex
	earlier int // nodes that have not said yet all that happened before
	waiting []said
	failed  error // of out
}

// await makes the merger write nothing until each node that is asked has said all that happened before.
func (m *merger) await(nodes []admin.Node) {
	for _, n := range nodes {
		if n.Err == nil {
			m.earlier++
		}
	}
}

// said is what a node said.
type said struct {
	at, came time.Time
	text     []byte
}

// hold is how long the merger waits for a node that says something later than the others.
const hold = 700 * time.Millisecond

// put takes a text that is about a time by this machine's clock.
func (m *merger) put(at time.Time, text []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiting = append(m.waiting, said{at, time.Now(), bytes.Clone(text)})
}

// Write takes a text that is about now.
func (m *merger) Write(text []byte) (int, error) {
	m.put(time.Now(), text)
	return len(text), nil
}

// caughtUp says that a node has said all that happened before. Each node says so once.
func (m *merger) caughtUp() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.earlier--
}

// release writes what came before a time, and what happened before that. It writes nothing while a node has not said all of that.
func (m *merger) release(came time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.earlier > 0 {
		return nil
	}
	slices.SortStableFunc(m.waiting, func(a, b said) int { return a.at.Compare(b.at) })
	n := len(m.waiting)
	for n > 0 && m.waiting[n-1].came.After(came) {
		n--
	}
	for _, s := range m.waiting[:n] {
		if m.failed == nil {
			_, m.failed = m.out.Write(s.text)
		}
	}
	m.waiting = slices.Delete(m.waiting, 0, n)
	return m.failed
}

// merge writes what run makes nodes say, until it returns. A reader that goes away ends it.
func (m *merger) merge(ctx context.Context, run func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	over := make(chan error, 1)
	go func() { over <- run(ctx) }()
	tick := time.NewTicker(hold / 4)
	defer tick.Stop()
	for {
		select {
		case err := <-over:
			m.earlier = 0
			return errors.Join(m.release(time.Now()), err)
		case now := <-tick.C:
			if err := m.release(now.Add(-hold)); err != nil {
				cancel()
				<-over
				return err
			}
		}
	}
}

// width returns the width of a column of the names of nodes.
func width(nodes []admin.Node) int {
	most := len("NODE")
	for _, n := range nodes {
		most = max(most, len(n.Name))
	}
	return min(most, 40)
}

// clockOff says on errOut that the clock of a node is off.
func clockOff(errOut io.Writer, name string, off time.Duration) {
	if off != 0 {
		fmt.Fprintf(errOut, "criproxy: %s: %s; times are shown by this machine's clock\n", calls.Sanitize(name), show.ClockOff(off))
	}
}

// fileOfNode returns the file of a node: path with the node's name before what the name of the file ends with.
func fileOfNode(path, name string) string {
	base, end, _ := strings.Cut(filepath.Base(path), ".")
	return filepath.Join(filepath.Dir(path), base+"-"+strings.ReplaceAll(strings.Trim(name, "/"), "/", "_")+"."+end)
}
