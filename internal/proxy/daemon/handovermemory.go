package daemon

import (
	"context"
	"encoding/gob"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/memory"
)

// memoriesTime bounds how long a process may take to pass on its memories after the successor has
// asked for them.
const memoriesTime = 30 * time.Second

// memoriesFor returns one end of a socket, from which the successor reads the memories of this
// process, and a function that serves the other end until stop is called. It sends the memories
// when the successor asks for them, as late as possible, and the evidence of now. After that it
// sends a note of each call that began in this process and ends later, because its client may then
// ask the successor about the result.
func (p *Proxy) memoriesFor() (theirs *os.File, serve func() (stop func()), err error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("making a socket for the memories: %w", err)
	}
	theirs, file := os.NewFile(uintptr(fds[1]), "memories"), os.NewFile(uintptr(fds[0]), "memories")
	conn, err := net.FileConn(file)
	_ = file.Close() // conn has its own descriptor
	if err != nil {
		_ = theirs.Close() // it is unused
		return nil, nil, fmt.Errorf("making a socket for the memories: %w", err)
	}
	h := &heir{conn: conn, gob: gob.NewEncoder(conn)}
	evidence := p.encodeEvidence() // now, because with all recorded calls it would delay the memories too long
	return theirs, func() func() {
		done := make(chan struct{})
		go func() {
			defer close(done)
			if _, err := conn.Read(make([]byte, 1)); err != nil {
				return // the successor is of an earlier version, or has ended
			}
			h.mu.Lock()
			defer h.mu.Unlock() // notes come after the memories
			p.memories.HandOn(h.send)
			all, err := p.memories.Encode()
			if err == nil {
				all[evidenceKey] = evidence
				_ = conn.SetDeadline(time.Now().Add(memoriesTime))
				err = h.gob.Encode(all)
			}
			if err != nil {
				klog.ErrorS(err, "The new process does not get the memories of the backends")
				h.end()
			}
		}()
		return func() {
			p.memories.HandOn(nil)
			_ = conn.Close() // ends the goroutine
			<-done
		}
	}, nil
}

// heir is the process that takes over, seen from the process that hands over.
type heir struct {
	mu    sync.Mutex
	conn  net.Conn
	gob   *gob.Encoder
	ended bool
}

// heirNote is a note about a call to a backend, for the heir.
type heirNote struct {
	Backend string
	Note    memory.Note
}

// heirTime bounds how long the end of a call waits until the heir has its note.
const heirTime = 5 * time.Second

// send returns when the heir has got the note of a call. A heir that does not answer in time gets
// no more notes.
func (h *heir) send(backend string, n memory.Note) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended {
		return
	}
	_ = h.conn.SetDeadline(time.Now().Add(heirTime))
	err := h.gob.Encode(heirNote{backend, n})
	if err == nil {
		_, err = h.conn.Read(make([]byte, 1))
	}
	if err != nil { // the heir has ended, or is of an earlier version
		h.end()
	}
}

func (h *heir) end() {
	h.ended = true
	_ = h.conn.Close() // no more notes follow
}

// Legacy has the memories of the process that hands over. It is nil if there is no such process.
type Legacy struct {
	all   map[string][]byte // :: name of a backend → its encoded memory
	conn  net.Conn          // notes come from it
	gob   *gob.Decoder
	ended chan struct{} // closed when no more notes come
}

// ReceiveLegacy reads the memories of the process that hands over from a socket. It returns nil
// if from is nil. After an error this process must not serve: without the memories, a runtime that
// is gone would have no pods, and kubelet would start them a second time. The other process then
// goes on.
func ReceiveLegacy(from *os.File) (*Legacy, error) {
	if from == nil {
		return nil, nil
	}
	defer from.Close() // conn has its own descriptor
	conn, err := net.FileConn(from)
	if err != nil {
		return nil, legacyError(err)
	}
	l := &Legacy{ended: make(chan struct{}), conn: conn, gob: gob.NewDecoder(conn)}
	_ = conn.SetDeadline(time.Now().Add(memoriesTime))
	if _, err = conn.Write([]byte{1}); err == nil {
		err = l.gob.Decode(&l.all)
	}
	if err != nil {
		_ = conn.Close() // the other process notices that
		return nil, legacyError(err)
	}
	_ = conn.SetDeadline(time.Time{})
	return l, nil
}

func legacyError(err error) error {
	return fmt.Errorf("taking over the memories of the previous process, which goes on: %w", err)
}

// follow learns of the calls that the previous process still has under way, until that process ends
// or l is closed.
func (l *Legacy) follow(m *Memories) {
	if l == nil {
		return
	}
	defer close(l.ended)
	for {
		var n heirNote
		if err := l.gob.Decode(&n); err != nil {
			return // the previous process has ended
		}
		if err := m.Learn(n.Backend, n.Note); err != nil {
			klog.ErrorS(err, "A call of the previous process was not noted; the next lists show it", "backend", n.Backend, "method", n.Note.Method)
		}
		if _, err := l.conn.Write([]byte{1}); err != nil {
			return
		}
	}
}

// await returns when the previous process has ended, after bound, or when ctx ends.
func (l *Legacy) await(ctx context.Context, bound time.Duration) {
	if l == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	select {
	case <-l.ended:
	case <-ctx.Done():
	}
}

func (l *Legacy) close() {
	if l != nil {
		_ = l.conn.Close() // ends follow
	}
}

// memories returns the encoded memory of each backend, by its name.
func (l *Legacy) memories() map[string][]byte {
	if l == nil {
		return nil
	}
	return l.all
}
