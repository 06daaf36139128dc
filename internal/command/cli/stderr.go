// This file keeps the process from waiting for the reader of its log.

package cli

import (
	"bufio"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc/grpclog"

	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

const (
	// maxUnread is how many unread bytes of the log may wait before lines are lost.
	maxUnread = 1 << 20

	// LastRead is how long the process waits at its end until the reader has read the rest.
	LastRead = time.Second
)

// Log holds lines of the log that have not been read from stderr yet. klog holds a lock while it
// writes, and code that logs often holds other locks: without Log, a journal that hangs or a
// pipe that is not read would hold up calls.
type Log struct {
	in   *os.File      // where to write; klog only accepts a file
	done chan struct{} // closed when everything has been written to the reader
	more chan struct{} // holds a token while there may be lines; closed at the end

	mu    sync.Mutex
	lines []byte // complete lines
	lost  int    // number of lost lines after them
}

// NewLog returns a log that copies each line to the writer to, in order, with a note where lines
// are missing. Lines quote clients, runtimes and plugins, and klog shows a text of several lines as it
// is: l replaces what a terminal would obey.
func NewLog(to io.Writer) (*Log, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("a pipe for the log: %w", err)
	}
	l := &Log{in: w, done: make(chan struct{}), more: make(chan struct{}, 1)}
	go l.read(r)
	go l.write(calls.Terminal{Writer: to})
	return l, nil
}

// Take makes l the log of this process. The caller must call it before anything logs. From then on
// a reader that closes the pipe does not end the process, as it does by default in Go (os/signal,
// SIGPIPE).
func (l *Log) Take() {
	signal.Ignore(syscall.SIGPIPE)
	os.Stderr = l.in    // klog
	log.SetOutput(l.in) // net/http
	if os.Getenv("GRPC_GO_LOG_SEVERITY_LEVEL") == "" {
		grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, l.in)) // only errors, which is gRPC's default
	}
}

// Close waits until the log has been read, for at most LastRead. Later lines are lost.
func (l *Log) Close() {
	_ = l.in.Close() // the error would change nothing
	select {
	case <-l.done:
	case <-time.After(LastRead):
	}
}

// read keeps each line that it reads, if there is room for its beginning.
func (l *Log) read(from io.ReadCloser) {
	defer close(l.more)
	defer from.Close()
	r := bufio.NewReaderSize(from, 64<<10)
	for within, keep := false, false; ; {
		piece, err := r.ReadSlice('\n')
		l.mu.Lock()
		if !within && len(piece) > 0 {
			if keep = len(l.lines) < maxUnread; !keep {
				l.lost++
			}
		}
		if keep {
			l.lines = append(l.lines, piece...)
		}
		l.mu.Unlock()
		within = err == bufio.ErrBufferFull
		if err != nil && !within {
			return
		}
		select {
		case l.more <- struct{}{}:
		default:
		}
	}
}

// write writes the lines, however long the reader takes.
func (l *Log) write(to io.Writer) {
	defer close(l.done)
	for open := true; open; {
		_, open = <-l.more
		l.mu.Lock()
		lines, lost := l.lines, l.lost
		l.lines, l.lost = nil, 0
		l.mu.Unlock()
		_, _ = to.Write(lines) // a failure cannot be reported anywhere
		if lost > 0 {
			fmt.Fprintf(to, "criproxy: missing here: %s of the log, which was not read\n", capture.Count(lost, "line"))
		}
	}
}
