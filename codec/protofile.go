package codec

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/reporter"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// CompileProto returns a schema of all services in .proto files. It looks for their imports in
// folders, in that order, and then in the folders of the files themselves; the files of protobuf
// are built in. The error names every mistake with its file and line.
func CompileProto(ctx context.Context, folders []string, files ...string) (*Schema, error) {
	if len(files) == 0 {
		return nil, errors.New("want at least one .proto file")
	}
	var paths, names []string
	paths = append(paths, folders...)
	for _, file := range files {
		name, in := relative(folders, file)
		if !in {
			paths = append(paths, filepath.Dir(file))
			name = filepath.Base(file)
		}
		names = append(names, name)
	}
	var mistakes []error
	c := protocompile.Compiler{
		Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: paths}),
		Reporter: reporter.NewReporter(func(err reporter.ErrorWithPos) error {
			mistakes = append(mistakes, err)
			return nil // go on, to find them all
		}, nil),
	}
	linked, err := c.Compile(ctx, names...)
	if len(mistakes) > 0 {
		return nil, errors.Join(mistakes...)
	}
	if err != nil {
		return nil, fmt.Errorf("compiling %s: %w", strings.Join(files, ", "), err)
	}
	var fds []protoreflect.FileDescriptor
	for _, f := range linked {
		fds = append(fds, f)
	}
	return NewSchema(fds...), nil
}

// relative returns the path of a file relative to the first folder that contains it.
func relative(folders []string, file string) (string, bool) {
	for _, folder := range folders {
		if rel, err := filepath.Rel(folder, file); err == nil && !strings.HasPrefix(rel, "..") {
			return filepath.ToSlash(rel), true
		}
	}
	return "", false
}
