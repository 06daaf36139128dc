package listen

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/criproxy/criproxy/internal/config"
)

// rights are the mode and the owner of a socket's file. They decide who can connect: connect(2) needs the right to write.
type rights struct {
	mode     os.FileMode // 0 means unchanged
	uid, gid int         // -1 means unchanged
}

// rightsOf returns the rights for a new file of l. If l has no mode or owner, they are those of the
// file at model.
func rightsOf(l config.Listener, model string) rights {
	var r rights
	r.mode, _ = l.Perm()      // the configuration has checked both
	r.uid, r.gid, _ = l.IDs() // likewise
	if info, err := os.Stat(model); err == nil {
		if r.mode == 0 { // a client needs the right to write, to connect
			r.mode = info.Mode().Perm()
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && l.Owner == "" && os.Getuid() == 0 {
			r.uid, r.gid = int(st.Uid), int(st.Gid)
		}
	}
	if r.mode == 0 {
		r.mode = config.DefaultMode
	}
	return r
}

// newRights returns the changes of an existing file's rights when l replaces was. For a file that
// existed before this process, was is empty.
func newRights(was, l config.Listener, model string) rights {
	r := rightsOf(l, model)
	if l.Mode == was.Mode {
		r.mode = 0
	}
	if l.Owner == was.Owner {
		r.uid, r.gid = -1, -1
		return r
	}
	if r.uid < 0 { // the owner of a new file
		r.uid = os.Geteuid()
	}
	if r.gid < 0 {
		r.gid = os.Getegid()
	}
	return r
}

// openFile returns the socket of l, which has a file. It uses the inherited listener, or opens a
// new one if that is nil. An inherited file gets the mode and owner of l if l has some, and otherwise keeps its own.
func openFile(l config.Listener, model string, inherited net.Listener) (*Socket, error) {
	listen := func() (net.Listener, error) { return listenAt(l, model) }
	if inherited == nil {
		listener, err := listen()
		if err != nil {
			return nil, err
		}
		return New(KeepFile(l.Path, listener, listen), l), nil
	}
	f := KeepFile(l.Path, inherited, listen)
	if err := f.permit(newRights(config.Listener{}, l, model)); err != nil {
		f.Close() // no client was served
		return nil, fmt.Errorf("the socket %s was open before: %w; run as root, or set SocketMode=, SocketUser= and SocketGroup= in its .socket unit", l.Path, err)
	}
	return New(f, l), nil
}

// ChangeFile gives the file of s the mode and the owner that l asks for. Clients stay connected.
func ChangeFile(s *Socket, l config.Listener, model string) error {
	f, ok := s.Listener.(*File)
	if !ok {
		return nil
	}
	f.renew(func() (net.Listener, error) { return listenAt(l, model) })
	return f.permit(newRights(s.Cfg, l, model))
}

// listenAt opens the socket file of l.
func listenAt(l config.Listener, model string) (net.Listener, error) {
	r := rightsOf(l, model)
	flag := "listeners in the configuration"
	if l.Main {
		flag = "-listen"
	}
	listener, err := Unix(l.Path, r.mode, flag)
	if err != nil {
		return nil, err
	}
	if err := os.Lchown(l.Path, r.uid, r.gid); err != nil {
		listener.Close()
		return nil, err
	}
	return listener, nil
}

// renew replaces the function that Restore calls to make the file.
func (s *File) renew(make func() (net.Listener, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.make = make
}

// permit changes the rights of the file, unless the file was replaced: then Restore makes it again.
func (s *File) permit(r rights) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	// O_PATH: the file that is examined is the one that is changed, even if the path changes.
	fd, err := unix.Open(s.Path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking at its file: %w", err)
	}
	f := os.NewFile(uintptr(fd), s.Path)
	defer f.Close() // the file was only examined
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("looking at its file: %w", err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || s.file == nil || !os.SameFile(info, s.file) || info.Mode().Type() != os.ModeSocket {
		return nil
	}
	return r.give(fmt.Sprintf("/proc/self/fd/%d", fd), rights{info.Mode().Perm(), int(st.Uid), int(st.Gid)})
}

// give changes the rights of the file at path from now to r. In between, no process can connect
// that cannot connect before and after.
func (r rights) give(path string, now rights) error {
	if r.mode == 0 {
		r.mode = now.mode
	}
	if r.uid < 0 {
		r.uid = now.uid
	}
	if r.gid < 0 {
		r.gid = now.gid
	}
	chmod := func(mode os.FileMode) error {
		if mode == now.mode {
			return nil
		}
		if err := os.Chmod(path, mode); err != nil {
			return fmt.Errorf("changing its mode from %04o to %04o: %w", now.mode, mode, errors.Unwrap(err))
		}
		now.mode = mode
		return nil
	}
	if r.uid != now.uid || r.gid != now.gid {
		if err := chmod(now.mode & r.mode); err != nil {
			return err
		}
		if err := os.Chown(path, r.uid, r.gid); err != nil {
			return fmt.Errorf("changing its owner from %d:%d to %d:%d: %w", now.uid, now.gid, r.uid, r.gid, errors.Unwrap(err))
		}
	}
	return chmod(r.mode)
}
