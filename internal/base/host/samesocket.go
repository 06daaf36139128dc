package host

import (
	"os"
	"path/filepath"
)

// maxLinks is how many symbolic links the kernel follows in one path: path_resolution(7).
const maxLinks = 40

// SameSocket reports whether two addresses are one socket: a path has several spellings, leads through symbolic links such
// as /var/run, and a file can have a hard link or be mounted at several places. The socket need not exist. Addresses that
// are no absolute paths are the same if their texts are.
func SameSocket(a, b string) bool {
	if a == b {
		return true
	}
	if !filepath.IsAbs(a) || !filepath.IsAbs(b) {
		return false
	}
	if Resolve(a) == Resolve(b) {
		return true
	}
	one, err := os.Stat(a)
	if err != nil {
		return false
	}
	other, err := os.Stat(b)
	return err == nil && os.SameFile(one, other)
}

// Resolve returns an absolute path without symbolic links. The file that it leads to need not exist. What cannot be
// resolved stays as it is.
func Resolve(path string) string {
	path = filepath.Clean(path)
	for range maxLinks {
		if dir, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
			path = filepath.Join(dir, filepath.Base(path))
		}
		to, err := os.Readlink(path)
		if err != nil {
			break // it is no link
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		path = filepath.Clean(to)
	}
	return path
}
