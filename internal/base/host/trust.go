// This file finds out whether another user can change a file. criproxy, which runs as root,
// obeys the files that it reads, and writes the calls of all pods to others. No other user may be
// able to put another file in the place of one of them.

package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// Sharing says which other users may write to a folder.
type Sharing int

const (
	// Alone means that only root and the user of this process may write.
	Alone Sharing = iota
	// Sticky means that all users may write, if none can remove the file of another, as in
	// /tmp. It suffices for a file that must not exist before this process creates it.
	Sticky
)

// Folder returns an error if other users could put files into a folder, or another folder in its
// place. If the folder does not exist, Folder checks the one in which other users might create it.
func Folder(path string, s Sharing) error {
	abs, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	if err := links(abs); err != nil {
		return err
	}
	real, err := filepath.EvalSymlinks(abs)
	for errors.Is(err, fs.ErrNotExist) && abs != "/" { // another user could make it
		abs = filepath.Dir(abs)
		real, err = filepath.EvalSymlinks(abs)
	}
	if err != nil {
		return fmt.Errorf("looking at the folder %s: %w", path, err)
	}
	for dir := real; ; dir = filepath.Dir(dir) {
		info, err := os.Lstat(dir)
		if err != nil {
			return fmt.Errorf("looking at the folder %s: %w", dir, err)
		}
		var fs unix.Statfs_t
		if dir == real && unix.Statfs(dir, &fs) == nil && fs.Flags&readOnly != 0 {
			return nil // read-only whatever its mode, as the mount of a ConfigMap is
		}
		sharing := s
		if dir != real {
			sharing = Sticky // others cannot remove the folder in it, which is not theirs
		}
		if err := check(dir, info, sharing); err != nil {
			return err
		}
		if dir == "/" {
			return nil
		}
	}
}

// readOnly is ST_RDONLY of Linux and MNT_RDONLY of the BSDs.
const readOnly = 1

// links returns an error if another user could make a symbolic link in the path lead elsewhere.
func links(path string) error {
	for ; path != "/"; path = filepath.Dir(path) {
		info, err := os.Lstat(path)
		if err != nil || info.Mode()&fs.ModeSymlink == 0 {
			continue // Folder checks the folder of a file that does not exist
		}
		if uid, theirs := ofAnotherUser(info); theirs {
			return fmt.Errorf("the symbolic link %s belongs to uid %d, which could make it lead elsewhere; use the path that it leads to", path, uid)
		}
		if err := Folder(filepath.Dir(path), Sticky); err != nil {
			return err
		}
	}
	return nil
}

// ofAnotherUser returns the owner of a file, and whether that is neither root nor the user of this
// process.
func ofAnotherUser(info fs.FileInfo) (uid uint32, theirs bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return st.Uid, st.Uid != 0 && int(st.Uid) != os.Geteuid()
}

// File returns an error if other users could change an existing file. It does not check the folder.
func File(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	return check(path, info, Alone)
}

func check(path string, info fs.FileInfo, s Sharing) error {
	mode := info.Mode()
	if uid, theirs := ofAnotherUser(info); theirs {
		return fmt.Errorf("%s belongs to uid %d, which could change it; make it root's, as with chown root %s", path, uid, path)
	}
	if mode.Perm()&0o002 != 0 && (s != Sticky || mode&fs.ModeSticky == 0) {
		return fmt.Errorf("%s can be written to by every user (mode %04o); forbid that, as with chmod o-w %s", path, mode.Perm(), path)
	}
	return nil
}
