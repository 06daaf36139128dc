package server

import (
	"bytes"
	"cmp"
	"context"
	"os"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/observe/admin"
)

// No reload and no handover ends a call before its own deadline: StopContainer may have an hour, in which the container
// ends as it should. The old process, or the old backends, stay for such calls. For calls without a deadline, and for
// those with an earlier one, they stay for [Machine.Patience].

// patience is the default of [Machine.Patience]. It is long enough for pulls, which have no deadline.
const patience = 10 * time.Minute

// patience returns how long calls may go on whatever their deadlines.
func (p *Proxy) patience() time.Duration { return cmp.Or(p.machine.Patience, patience) }

// texts returns calls as text.
func texts(all []admin.LongCall) (lines []string) {
	for i := range all {
		lines = append(lines, all[i].String())
	}
	return lines
}

// deadlineGrace is how long a call may take, after its deadline, until its client knows.
const deadlineGrace = time.Second

// longStream is the stream of a call whose client waits longer than others. It keeps the request, which says what the call
// is about. Other calls do without it: their requests would be copied for nothing.
type longStream struct {
	grpc.ServerStream
	groups *callGroups
	call   *callUnderWay
}

// mostKept bounds the bytes of a request that is kept.
const mostKept = 4 << 10

// RecvMsg receives the request, and keeps a copy of it: the frame belongs to the handler, which frees it.
func (s *longStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	if f, ok := m.(*codec.Frame); ok && f.Len() <= mostKept {
		request := bytes.Clone(f.Bytes())
		s.groups.mu.Lock()
		s.call.request = request
		s.groups.mu.Unlock()
	}
	return nil
}

// long returns the calls whose clients wait longer than [Machine.Patience], of the groups up to a number. They are copies.
func (gs *callGroups) long(last int) (all []callUnderWay) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	for c := range gs.calls {
		if !c.until.IsZero() && c.group <= last {
			all = append(all, *c)
		}
	}
	return all
}

// current returns the number of the current group.
func (gs *callGroups) current() int {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	return gs.now
}

// left returns how long the latest deadline of calls is away, and a little more. It is zero if all have passed.
func left(all []admin.LongCall) time.Duration {
	var most time.Duration
	for _, c := range all {
		if d := time.Until(c.Until); d > 0 {
			most = max(most, d+deadlineGrace)
		}
	}
	return most
}

// await returns when ended is closed, when ctx ends, or after bound and as often as more then returns another bound.
func await(ctx context.Context, ended <-chan struct{}, bound time.Duration, more func() time.Duration) {
	for bound > 0 {
		select {
		case <-ended:
			return
		case <-ctx.Done():
			return
		case <-time.After(bound):
			bound = more()
		}
	}
}

// stays returns how long a process that has handed over stays for calls. It is zero if somebody has asked it to stop.
func (p *Proxy) stays(stopped bool) time.Duration {
	if stopped || !p.hasHandedOver() {
		return 0
	}
	return left(p.staysFor())
}

// staysFor returns the calls for which something stays: the backends of before a reload, the process that has handed over
// to this one, or, once this one has handed over, this process. The calls of the current group are none of these before a
// handover: they would go on without anything special.
func (p *Proxy) staysFor() []admin.LongCall {
	last := p.callGroups.current()
	if !p.hasHandedOver() {
		last--
	}
	return append(p.predecessor.calls(), p.describe(p.callGroups.long(last))...)
}

// hasHandedOver reports whether another process serves.
func (p *Proxy) hasHandedOver() bool { return p.handedOver.Err() != nil }

// notifySuccessor notifies the successor of the calls for which this process stays, and again when they have changed, until done
// is closed. The successor shows them in its status, because this process has no admin socket any more.
func (p *Proxy) notifySuccessor(done <-chan struct{}) {
	const pause = time.Second
	var said []admin.LongCall
	for p.successor != nil {
		if now := p.staysFor(); !slices.Equal(now, said) {
			if !p.successor.send(&successorNote{Keeps: true, Calls: now}) {
				return
			}
			said = now
		}
		select {
		case <-time.After(pause):
		case <-done:
			return
		}
	}
}

// describe describes long calls for people, the longest first. Where the request names something, its first id is there.
func (p *Proxy) describe(all []callUnderWay) (shown []admin.LongCall) {
	if len(all) == 0 {
		return nil
	}
	names := p.names()
	for _, c := range all {
		one := admin.LongCall{PID: os.Getpid(), Method: c.method, Client: "an unknown client", Since: c.since, Until: c.until}
		if c.peer != nil {
			one.Client = c.peer.Program()
		}
		if m := p.record.Schema.Method(c.method); m != nil && names != nil {
			if about, _ := names.Message(m.Input, c.request); len(about.IDs) > 0 {
				one.ID = about.IDs[0]
			}
		}
		shown = append(shown, one)
	}
	slices.SortFunc(shown, func(a, b admin.LongCall) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Method, b.Method), cmp.Compare(a.ID, b.ID))
	})
	return shown
}
