package plugins

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/criproxy/criproxy/internal/base/host"
)

// folder is the folder of plugins, as it was read last.
type folder struct {
	path  string
	files map[string]*found // :: name → file
	err   string            // why it cannot be read, as it was reported last
}

// found is one file.
type found struct {
	content  string
	file     *File // its latest valid content; nil if it has never been valid
	err      error // why its content is not valid now
	warnings []string

	emptySince time.Time // since when it has no content; zero if it has
}

// patience is how long a file may stay empty before the package reports it.
const patience = time.Second

// read reads all files, and reports whether a plugin has changed. It passes events to report.
func (f *folder) read(now time.Time, report func(Event)) (changed bool) {
	entries, err := f.entries()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		if f.err != err.Error() {
			f.err = err.Error()
			report(Trouble{What: "the folder of plugins cannot be read; the plugins stay as they are", Err: err})
		}
		return false
	}
	f.err = ""
	there := map[string]bool{}
	for _, e := range entries {
		name := e.Name()
		if !isPlugin(name) {
			continue
		}
		content, err := f.content(name)
		if errors.Is(err, errNoFile) {
			continue
		}
		there[name] = true
		if f.take(name, content, err, now, report) {
			changed = true
		}
	}
	for _, name := range sortedKeys(f.files) {
		if there[name] {
			continue
		}
		if f.files[name].file != nil {
			changed = true
			report(Removed{Plugin: name})
		}
		delete(f.files, name)
	}
	return changed
}

// entries lists the folder, unless other users could register a plugin there: a plugin sees and
// changes all pods. (A ConfigMap is mounted with the mode 0777, but read-only.)
func (f *folder) entries() ([]fs.DirEntry, error) {
	if _, err := os.Stat(f.path); err != nil {
		return nil, err
	}
	if err := host.Folder(f.path, host.Alone); err != nil {
		return nil, err
	}
	return os.ReadDir(f.path)
}

// isPlugin reports whether a file of this name is a plugin's. Names that begin with a dot belong to
// files that are still written, and to a ConfigMap's folders.
func isPlugin(name string) bool {
	return strings.HasSuffix(name, "json") && !strings.HasPrefix(name, ".")
}

// errNoFile is the error of a name that is no regular file, or is gone again.
var errNoFile = errors.New("no file")

// lacks reports whether a file is gone that read may not have missed yet.
func (f *folder) lacks(name string) bool {
	_, err := os.Lstat(filepath.Join(f.path, name))
	return errors.Is(err, fs.ErrNotExist)
}

func (f *folder) content(name string) (string, error) {
	path := filepath.Join(f.path, name)
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(path); err == nil {
			return "", errors.New("it is a symbolic link that leads nowhere")
		}
		return "", errNoFile
	}
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", errNoFile
	}
	if err := host.File(path); err != nil {
		return "", err
	}
	r, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer r.Close() // the file was only read: the error does not matter
	data, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if len(data) > maxFile {
		return "", fmt.Errorf("it has more than %d bytes", maxFile)
	}
	return string(data), err
}

// take notes the content of a file, or the error why it cannot be read, and reports whether the
// plugin has changed.
func (f *folder) take(name, content string, err error, now time.Time, report func(Event)) bool {
	was := f.files[name]
	if was == nil {
		was = &found{}
		f.files[name] = was
	} else if err == nil && was.content == content && was.emptySince.IsZero() {
		return false
	}
	var file *File
	var warnings []string
	if err == nil {
		file, warnings, err = ParseFile([]byte(content))
	}
	if errors.Is(err, errEmpty) {
		if was.emptySince.IsZero() {
			was.emptySince = now
		}
		if now.Sub(was.emptySince) < patience {
			return false
		}
	} else {
		was.emptySince = time.Time{}
	}
	if err != nil {
		if was.err == nil || was.err.Error() != err.Error() {
			report(Broken{Plugin: name, Err: err, Kept: was.file != nil})
		}
		was.content, was.err = content, err
		return false
	}
	slices.Sort(file.Hooks)
	file.Hooks = slices.Compact(file.Hooks)
	old := was.file
	was.content, was.err, was.file, was.warnings = content, nil, file, warnings
	return old == nil || !reflect.DeepEqual(old, file)
}

// waiting reports whether there is an empty file that may still be written.
func (f *folder) waiting() bool {
	for _, one := range f.files {
		if !one.emptySince.IsZero() && one.err == nil {
			return true
		}
	}
	return false
}
