package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/server/listen"
)

// ExitBound is how long this process may take to end once no call has time left. Calls under way may take drainTime of it. A
// goroutine that does not end by then may be blocked for good, for example because it prints to a
// pipe that is not read. The bound is below TimeoutStopSec in the systemd unit.
const ExitBound = 2 * drainTime

// The first log line about what the end waits for comes after firstWord. The pauses between further
// lines double each time, up to lastWord.
const (
	firstWord = time.Second
	lastWord  = time.Minute
)

// ErrCutOff is the error of a process that ended before all calls and tasks had. AwaitEnd has logged
// them.
var ErrCutOff = errors.New("the process ended before all calls had")

// AwaitEnd calls run and returns its error. While a proxy that should end has not, it logs
// repeatedly what it waits for. After ExitBound it gives up, logs that, and returns [ErrCutOff].
//
// The bound depends on why the proxy should end:
//
//	somebody stopped it, or a socket failed   ExitBound
//	it handed over                            the patience for calls under way, and ExitBound; longer while a call has time left
//	it handed over, then somebody stopped it  ExitBound from then on
func (p *Proxy) AwaitEnd(ctx context.Context, run func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- run() }()
	bound, cut := ExitBound, ctx.Done()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		cut = nil
	case <-p.failed.Done():
	case <-p.handedOver.Done():
		bound += p.patience()
	}
	began := time.Now()
	last := time.NewTimer(bound)
	for next := firstWord; ; next = min(2*next, lastWord) {
		word := time.NewTimer(next)
		select {
		case err := <-ended:
			return err
		case <-cut:
			cut = nil
			last.Reset(ExitBound)
		case <-word.C:
			klog.InfoS("Still stopping", p.underWay("after", time.Since(began).Round(time.Second))...)
		case <-last.C:
			if more := p.stays(cut == nil); more > 0 {
				last.Reset(more + ExitBound)
				break
			}
			klog.ErrorS(nil, "This process ends now, and cuts off what has not ended", p.underWay("after", time.Since(began).Round(time.Second))...)
			return ErrCutOff
		}
		word.Stop()
	}
}

// underWay adds to the keys of a log line what a stopping proxy waits for: calls of clients,
// backends that have not answered them, connections, and, after these have ended, tasks of the
// process. What there is none of has no key, and of a long list the line has the first ten.
func (p *Proxy) underWay(line ...any) []any {
	add := func(key string, all []string) {
		const most = 10
		if more := len(all) - most; more > 0 {
			all = append(all[:most:most], fmt.Sprintf("and %d more", more))
		}
		if len(all) > 0 {
			line = append(line, key, all)
		}
	}
	add("calls", p.callGroups.underWay())
	add("staysFor", texts(p.staysFor()))
	var backends []string
	for _, b := range p.backends() {
		if n := b.calls.UnderWay(); n > 0 {
			backends = append(backends, fmt.Sprintf("%s has not answered %d", b, n))
		}
	}
	add("backends", backends)
	add("connections", p.connected())
	if p.disconnected.Load() {
		add("parts", p.parts.names())
	}
	return line
}

// connected lists the connected clients, with their sockets: how many connections each program has at each socket.
func (p *Proxy) connected() []string {
	var all []string
	for s, clients := range p.clients() {
		for client, n := range clients {
			all = append(all, fmt.Sprintf("%d of %s at %s", n, client, s.Path))
		}
	}
	slices.Sort(all)
	return all
}

// clients counts the connected clients of each socket.
func (p *Proxy) clients() map[*listen.Socket]map[string]int {
	count := map[*listen.Socket]map[string]int{}
	add := func(s *listen.Socket, client string) {
		if count[s] == nil {
			count[s] = map[string]int{}
		}
		count[s][client]++
	}
	known, greeting := p.server.Peers()
	for _, info := range known {
		if client, ok := info.(*listen.Peer); ok {
			add(client.Socket, client.Program())
		}
	}
	for _, l := range greeting {
		if s, ok := l.(*listen.Socket); ok {
			add(s, "a client that has sent nothing yet")
		}
	}
	return count
}

// parts are the tasks of a process that its end waits for. They have names, so that a stop that hangs can be explained. parts
// is safe for concurrent use, and its zero value has none.
type parts struct {
	mu    sync.Mutex
	count map[string]int // :: name of the task
}

// do calls f as a task named what. Several tasks may have one name; the name is there until the last of them has ended.
func (p *parts) do(what string, f func()) {
	p.add(what, 1)
	defer p.add(what, -1)
	f()
}

// add counts n more tasks of a name.
func (p *parts) add(what string, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.count == nil {
		p.count = map[string]int{}
	}
	if p.count[what] += n; p.count[what] == 0 {
		delete(p.count, what)
	}
}

// names returns the names of the tasks that have not ended.
func (p *parts) names() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.count))
}

// callUnderWay is a call of a client. The goroutine of the call makes it, and enters it into the groups and leaves them with
// it; only the request changes in between.
type callUnderWay struct {
	method string
	peer   *listen.Peer // nil if it is unknown
	since  time.Time
	group  int // its number; noGroup for an endless stream

	until   time.Time // the deadline of its client, if that is later than those of most
	request []byte    // then the request, when it has come; guarded by callGroups.mu
}

// underWay describes the calls under way, the longest first. Calls of the same method and client
// are counted together, with the time of the oldest, so that a line about a stop stays readable on a node with a thousand calls.
func (gs *callGroups) underWay() []string {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	type alike struct{ method, client, path string }
	counts, since := map[alike]int{}, map[alike]time.Time{}
	for c := range gs.calls {
		a := alike{method: c.method, client: "an unknown client"}
		if c.peer != nil {
			a.client, a.path = c.peer.Program(), c.peer.Socket.Path
		}
		counts[a]++
		if t, ok := since[a]; !ok || c.since.Before(t) {
			since[a] = c.since
		}
	}
	all := slices.SortedFunc(maps.Keys(counts), func(a, b alike) int {
		return cmp.Or(since[a].Compare(since[b]), strings.Compare(a.method, b.method), strings.Compare(a.client, b.client))
	})
	var texts []string
	for _, a := range all {
		texts = append(texts, fmt.Sprintf("%d %s by %s at %s, for %s", counts[a], a.method, a.client, a.path, time.Since(since[a]).Round(100*time.Millisecond)))
	}
	return texts
}
