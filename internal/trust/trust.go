// Package trust finds out whether another user can change a file. Root does as the files say that
// criproxy reads, and the files that it writes hold the calls of all pods: neither may lie where
// another user can put something else in their place.
package trust

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
	// Alone is no other than root and the user that we run as.
	Alone Sharing = iota
	// Sticky is all users, if none can take away a file of another, as in /tmp. It is enough
	// for a file that is created anew, and by its name alone.
	Sticky
)

// Folder returns why others could put their files into a folder, or another folder in its
// place, nil if they cannot. Of a folder that does not exist, Folder looks at the one in which
// others might make it.
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
		if dir == real && unix.Statfs(dir, &fs) == nil && fs.Flags&unix.ST_RDONLY != 0 {
			return nil // read-only, whatever the modes say: so is a ConfigMap mounted
		}
		sharing := s
		if dir != real {
			sharing = Sticky // others cannot take away the folder in it, which is ours
		}
		if err := check(dir, info, sharing); err != nil {
			return err
		}
		if dir == "/" {
			return nil
		}
	}
}

// links returns why another user could make one of the symbolic links in a path lead elsewhere.
func links(path string) error {
	for ; path != "/"; path = filepath.Dir(path) {
		info, err := os.Lstat(path)
		if err != nil || info.Mode()&fs.ModeSymlink == 0 {
			continue // what is not there is judged by the folder in which it would be
		}
		if uid, theirs := ofAnotherUser(info); theirs {
			return fmt.Errorf("the symbolic link %s belongs to uid %d, which could let it lead elsewhere; write out where it leads to", path, uid)
		}
		if err := Folder(filepath.Dir(path), Sticky); err != nil {
			return err
		}
	}
	return nil
}

// ofAnotherUser returns whose a file is, and whether that is neither root nor us.
func ofAnotherUser(info fs.FileInfo) (uid uint32, theirs bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return st.Uid, st.Uid != 0 && int(st.Uid) != os.Geteuid()
}

// File returns why others could change a file that is there, nil if they cannot. It does
// not look at the folder.
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
		return fmt.Errorf("%s can be written to by every user (mode %04o); take that away, as with chmod o-w %s", path, mode.Perm(), path)
	}
	return nil
}
