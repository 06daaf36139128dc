package director

import (
	"context"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
)

// endless is the stream of an endless method, which joins the streams of all backends. It lasts
// until the client ends it. When the stream of one backend ends, the others go on: a member opens
// it again, and a [Resync] makes the messages that the client missed. A reload adds backends and
// takes others away while the stream is open.
//
// If there is only one backend and it has no cache, its stream passes as it is, with header, end
// and trailer, until a reload changes that backend or adds others. single says so. It is set at the
// beginning, and once cleared it stays cleared.
//
// The goroutine of follow owns members and left. Each member has a goroutine of its own, and hands
// over messages by pass. frames bounds how many of them wait, and room how many bytes: a client that
// reads slowly slows all backends down.
type endless struct {
	ctx     context.Context
	cancel  context.CancelFunc
	name    string // of the method
	request *codec.Frame
	frames  chan *codec.Frame   // holds up to ahead frames
	room    *semaphore.Weighted // for the bytes of frames
	several

	members map[memberKey]*member // only follow uses it
	left    map[memberKey]*member // likewise; members that were taken away and may still send their end
	group   sync.WaitGroup        // of the members
	single  atomic.Bool           // the stream of the only backend passes as it is

	mu      sync.Mutex
	err     error
	trailer metadata.MD
}

// The members may be ahead of the client by this many messages and bytes, so that one switch of
// goroutines passes on several messages.
const (
	ahead      = 32
	aheadBytes = 64 << 10 // the flow-control window of a stream
)

// memberKey identifies a backend over reloads: by its name, and by the form of its names in
// front. A backend that gets another form is another member: the client must be told that the
// old names are gone, and of the same objects by their new ones.
type memberKey struct {
	name string
	bare bool
}

// keyOf returns the key of a backend of a table. With another key, a backend has other names in front: it is another member.
func keyOf(t *table, backend int) memberKey {
	return memberKey{t.backends[backend].Name, backend == 0 || t.native}
}

// endless opens the call on all backends.
func (t *table) endless(ctx context.Context, cancel context.CancelFunc, m *method, request *codec.Frame) codec.Stream {
	request.Bytes() // in one piece, before several goroutines read it
	s := &endless{
		ctx: ctx, cancel: cancel, name: m.Name, request: request.Ref(),
		frames: make(chan *codec.Frame, ahead), room: semaphore.NewWeighted(aheadBytes), several: newSeveral(),
		members: map[memberKey]*member{}, left: map[memberKey]*member{},
	}
	s.single.Store(true)
	go func() {
		defer close(s.ended)
		if err := t.panics.Do(s.name, func() error { return s.follow(t, m) }); err != nil {
			s.end(err, nil)
		}
		s.group.Wait()
	}()
	return s
}

// follow keeps a member for each backend, through all reloads. If several reloads have happened meanwhile, it takes one table
// after the other, so that no backend that came and went is missed.
func (s *endless) follow(t *table, m *method) error {
	for late := false; ; late = true {
		s.gather(t, m, late)
		select {
		case <-s.ctx.Done():
			return nil
		case <-t.replaced:
		}
		t = t.next
		if m = t.methods[s.name]; m == nil || !m.endless {
			return status.Error(codes.Unavailable, "criproxy: a reload has changed the profile, and with it this stream; open it again")
		}
	}
}

// gather adds and removes members until there is one for each backend of t. late says that the
// client's stream is already open. A backend that comes back after a reload took it away gets a new
// member, which waits until the earlier one, in left, has sent its end.
func (s *endless) gather(t *table, m *method, late bool) {
	first := s.members[keyOf(t, 0)]
	if len(t.backends) > 1 || t.backends[0].Known != nil || late && (first == nil || first.at.Load().link() != t.links[0]) {
		s.single.Store(false)
		s.head(nil)
	}
	there := map[memberKey]bool{}
	for i := range t.backends {
		key := keyOf(t, i)
		there[key] = true
		at := &place{t, m, i}
		if one := s.members[key]; one != nil {
			one.move(at)
			continue
		}
		one := newMember(s, at, late, s.left[key])
		s.members[key] = one
		s.group.Go(func() {
			if err := t.panics.Do(s.name, one.run); err != nil {
				s.end(err, nil)
			}
		})
	}
	for key, one := range s.members {
		if !there[key] {
			one.leave()
			delete(s.members, key)
			s.left[key] = one
		}
	}
}

// end ends the call. The first error counts.
func (s *endless) end(err error, trailer metadata.MD) {
	s.mu.Lock()
	if s.err == nil {
		s.err, s.trailer = err, trailer
	}
	s.mu.Unlock()
	s.cancel()
}

// pass hands a message to the client, when there is room for it. It waits for bytes first and then for a place, and gives the
// bytes back if ctx ends in between.
func (s *endless) pass(ctx context.Context, f *codec.Frame) error {
	if err := s.room.Acquire(ctx, takes(f)); err != nil {
		return status.FromContextError(err).Err()
	}
	select {
	case s.frames <- f:
		return nil
	case <-ctx.Done():
		s.room.Release(takes(f))
		return status.FromContextError(ctx.Err()).Err()
	}
}

// takes returns how much room a message takes, in bytes. A message longer than all room waits until it has all of it.
func takes(f *codec.Frame) int64 { return int64(min(f.Len(), aheadBytes)) }

// Recv yields the messages that came before the end, and then the error of the end.
func (s *endless) Recv() (*codec.Frame, error) {
	select {
	case f := <-s.frames:
		s.room.Release(takes(f))
		return f, nil
	case <-s.ended:
		select {
		case f := <-s.frames: // it came before the end
			return f, nil
		default:
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.err != nil {
			return nil, s.err
		}
		return nil, status.FromContextError(s.ctx.Err()).Err()
	}
}

// Trailer waits for the end of all streams.
func (s *endless) Trailer() metadata.MD {
	<-s.ended
	return s.trailer
}
