package listen

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// File listens on a socket whose file may be deleted, by a clean-up of /run or by a mount over the
// folder. Connected clients would not notice, but no others could connect. Restore makes the
// file again. As a net.Listener, File outlives its file.
//
// It removes only a file that is still the one that it has made: another process may have put its own socket there, and
// that one is to stay. Accept does not take the lock, so a Restore that hangs on a disk delays no client of the current file.
type File struct {
	Path string
	now  atomic.Pointer[net.Listener] // a *net.UnixListener

	lost    atomic.Int64          // how often the file was found to be gone
	trouble atomic.Pointer[error] // why the file could not be restored; nil while it exists

	mu    sync.Mutex // guards the fields below
	make  func() (net.Listener, error)
	file  os.FileInfo // of the current file; nil if there has never been one
	ended bool        // Restore makes no more files
}

// KeepFile returns a File for l, which listens at path. Restore calls make to open another
// listener when the file is gone. The caller must call Restore periodically.
func KeepFile(path string, l net.Listener, make func() (net.Listener, error)) *File {
	s := &File{Path: path, make: make}
	s.now.Store(&l)
	s.file, _ = os.Lstat(path) // Restore makes a missing file
	return s
}

// Accept waits for a connection, at the current file. When Restore replaces the listener, it closes the old one, and Accept goes on
// with the new one.
func (s *File) Accept() (net.Conn, error) {
	for {
		now := s.now.Load()
		conn, err := (*now).Accept()
		if err == nil || s.now.Load() == now {
			return conn, err
		}
	}
}

// Close ends listening. It removes the file, unless another process has replaced it.
func (s *File) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	if l, ok := (*s.now.Load()).(*net.UnixListener); ok && !s.there() {
		l.SetUnlinkOnClose(false)
	}
	return (*s.now.Load()).Close()
}

// Addr returns the path.
func (s *File) Addr() net.Addr { return (*s.now.Load()).Addr() }

// SetDeadline sets the deadline of Accept, and ends restoring the file. It is for the end of a
// listener.
func (s *File) SetDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	if l, ok := (*s.now.Load()).(*net.UnixListener); ok {
		return l.SetDeadline(t)
	}
	return nil
}

// there reports whether the file exists and was not replaced. s.mu is held.
func (s *File) there() bool {
	info, err := os.Lstat(s.Path)
	return err == nil && s.file != nil && os.SameFile(info, s.file)
}

// Restore makes the file again if it is gone, and reports whether it did. If that fails, Restore
// logs the error once, and the next call tries again.
func (s *File) Restore() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || s.there() {
		return false
	}
	first := s.trouble.Load() == nil
	if first {
		s.lost.Add(1)
	}
	l, err := s.make()
	if err != nil {
		err = fmt.Errorf("the socket file %s is gone or was replaced, and cannot be restored, so no client can connect there: %w", s.Path, err)
		if was := s.trouble.Swap(&err); was == nil || (*was).Error() != err.Error() {
			klog.ErrorS(err, "No new client can connect to a socket; connected clients stay connected", "socket", s.Path)
		}
		return false
	}
	old := s.now.Swap(&l)
	s.file, _ = os.Lstat(s.Path)
	s.trouble.Store(nil)
	if l, ok := (*old).(*net.UnixListener); ok {
		l.SetUnlinkOnClose(false) // the file belongs to the new listener
	}
	_ = (*old).Close() // no client can connect there any more
	klog.InfoS("Restored a socket file that was gone; find out what deletes it", "socket", s.Path, "times", s.lost.Load())
	return true
}

// FileState returns how often the socket's file was found to be gone, and why it is missing now.
// Both are zero for a socket without a file.
func (s *Socket) FileState() (lost int64, trouble error) {
	f, ok := s.Listener.(*File)
	if !ok {
		return 0, nil
	}
	if err := f.trouble.Load(); err != nil {
		trouble = *err
	}
	return f.lost.Load(), trouble
}

// FileOf returns a descriptor of the socket on which l listens, for another process. It does not use
// net's File: as soon as a command gets its descriptor, the socket becomes a blocking one. If the other
// process then takes a connection, our Accept waits in the kernel, and closing the listener does not
// end that.
func FileOf(l net.Listener) (*os.File, error) {
	l = Raw(l)
	c, ok := l.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("%T is not a socket", l)
	}
	return duplicate(c, l.Addr().String())
}

// duplicate returns another descriptor of a socket, which no program that is started inherits.
func duplicate(c syscall.Conn, name string) (*os.File, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var fd int
	var failure error
	err = raw.Control(func(s uintptr) { fd, failure = unix.FcntlInt(s, unix.F_DUPFD_CLOEXEC, 0) })
	if err = errors.Join(err, failure); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Raw returns the listener of the operating system behind l.
func Raw(l net.Listener) net.Listener {
	if f, ok := l.(*File); ok {
		return *f.now.Load()
	}
	return l
}
