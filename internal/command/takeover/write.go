package takeover

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// A file is one to write; one without a text is to be removed.
type file struct{ path, text string }

// write writes the files whose contents differ, in this order, and prints the changes to out. If it fails, it restores the
// files that it has changed.
func (t *Takeover) write(out io.Writer, files ...file) (changed bool, err error) {
	was := map[string]string{} // :: file that was changed → its contents before
	defer func() {
		if err == nil {
			return
		}
		for path, text := range was {
			err = errors.Join(err, replaceFile(path, text))
			fmt.Fprintf(out, "%s is as before.\n", path)
		}
	}()
	for _, f := range files {
		path, after := f.path, f.text
		before, err := readIfThere(path)
		if err != nil {
			return changed, err
		}
		if before == after {
			continue
		}
		changed = true
		verb := "changed"
		switch {
		case before == "":
			verb = "made"
		case after == "":
			verb = "removed"
		}
		if t.DryRun {
			fmt.Fprintf(out, "%s would be %s:\n", path, verb)
		} else if err := replaceFile(path, after); err != nil {
			return changed, fmt.Errorf("writing %s: %w", path, err)
		} else {
			was[path] = before
			fmt.Fprintf(out, "%s is %s:\n", path, verb)
		}
		printDifference(out, before, after)
	}
	return changed, nil
}

// readIfThere returns what is in a file, and nothing for one that is not there, or not in a folder.
func readIfThere(path string) (string, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return "", nil
	}
	return string(data), err
}

// replaceFile replaces the contents of a file at once, and keeps its owner, group and mode.
func replaceFile(path, text string) error {
	if text == "" {
		return os.Remove(path)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real // a link stays one
	}
	next := path + ".criproxy-new"
	os.Remove(next) // a leftover of an install that was killed
	err := writeLike(path, next, text)
	if err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		os.Remove(next) // err is the one that matters
	}
	return err
}

// writeLike makes a file with the owner, group and mode of the file model, if model exists.
func writeLike(model, path, text string) error {
	info, err := os.Stat(model)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	mode := os.FileMode(0o644)
	if info != nil {
		mode = 0o600 // until it has the owner and mode of model
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	defer f.Close() // for the error paths; it is harmless after Close
	if info != nil {
		owner := info.Sys().(*syscall.Stat_t)
		if err := f.Chown(int(owner.Uid), int(owner.Gid)); err != nil {
			return fmt.Errorf("giving %s the owner and group of %s: %w; run this as root", path, model, err)
		}
		if err := f.Chmod(info.Mode()); err != nil { // unlike OpenFile, Chmod ignores the umask
			return err
		}
	}
	if _, err := f.WriteString(text); err != nil {
		return err
	}
	return f.Close()
}

// printDifference prints the lines that only one of two texts has.
func printDifference(out io.Writer, before, after string) {
	only := func(a, b, sign string) {
		there := map[string]bool{}
		for line := range strings.Lines(b) {
			there[line] = true
		}
		for line := range strings.Lines(a) {
			if !there[line] && strings.TrimSpace(line) != "" {
				fmt.Fprintf(out, "  %s %s\n", sign, strings.TrimRight(line, "\n"))
			}
		}
	}
	only(before, after, "-")
	only(after, before, "+")
}
