package host

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Folders returns the folders in which a change can make an absolute path lead to another file: that of the file, and that
// of each symbolic link on the way to it. Where the path ends, it is the last folder that exists.
func Folders(path string) []string {
	var all []string
	add := func(dir string) {
		if !slices.Contains(all, dir) {
			all = append(all, dir)
		}
	}
	at, links := "/", 0
	for rest := split(path); len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		if name == ".." {
			at = filepath.Dir(at)
			continue
		}
		next := filepath.Join(at, name)
		if to, err := os.Readlink(next); err == nil {
			add(at)
			if links++; links > maxLinks {
				break
			}
			if filepath.IsAbs(to) {
				at = "/"
			}
			rest = append(split(to), rest...)
			continue
		}
		if _, err := os.Lstat(next); err != nil || len(rest) == 0 {
			add(at)
			break
		}
		at = next
	}
	return all
}

// split returns the names in a path.
func split(path string) []string {
	return slices.DeleteFunc(strings.Split(path, "/"), func(name string) bool { return name == "" || name == "." })
}
