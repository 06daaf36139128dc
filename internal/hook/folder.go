package hook

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

	"github.com/criproxy/criproxy/internal/trust"
)

// folder is the folder of plugins, as it was read last.
type folder struct {
	path  string
	files map[string]*found // :: name → file
	err   string            // why it cannot be read, as it was reported
}

// found is one file.
type found struct {
	content  string
	file     *File // its content, of the time when it was good last; nil if it never was
	err      error // why it is not good now
	warnings []string

	emptySince time.Time // it was made, and has no content yet
}

// patience is how long a file may stay empty before that is reported.
const patience = time.Second

// read looks at all files and returns whether anything is otherwise than it was. What
// it finds goes to report.
func (f *folder) read(now time.Time, report func(Event)) (changed bool) {
	entries, err := f.entries()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		if f.err != err.Error() {
			f.err = err.Error()
			report(Trouble{What: "the folder of plugins is not read; they stay as they are", Err: err})
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

// entries lists the folder, unless others could register a plugin there: it sees and
// changes all pods. A ConfigMap is mounted with the mode 0777, but read-only.
func (f *folder) entries() ([]fs.DirEntry, error) {
	if _, err := os.Stat(f.path); err != nil {
		return nil, err
	}
	if err := trust.Folder(f.path, trust.Alone); err != nil {
		return nil, err
	}
	return os.ReadDir(f.path)
}

// isPlugin reports whether a file of this name is one. Names that begin with a dot are
// those of files that are being written, and of a ConfigMap's folders.
func isPlugin(name string) bool {
	return strings.HasSuffix(name, "json") && !strings.HasPrefix(name, ".")
}

// errNoFile is a folder, a socket or the like, or something that is gone again.
var errNoFile = errors.New("no file")

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
	if err := trust.File(path); err != nil {
		return "", err
	}
	r, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer r.Close() // it was only read
	data, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if len(data) > maxFile {
		return "", fmt.Errorf("it has more than %d bytes", maxFile)
	}
	return string(data), err
}

// take notes what a file says now, or why it cannot be read, and returns whether that
// changes anything.
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

// waiting reports whether a file is empty that may be written yet.
func (f *folder) waiting() bool {
	for _, one := range f.files {
		if !one.emptySince.IsZero() && one.err == nil {
			return true
		}
	}
	return false
}
