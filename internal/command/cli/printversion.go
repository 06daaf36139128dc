package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"runtime/debug"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/show"
)

// versions are those of criproxy and of what it is built with. Its JSON is stable.
type versions struct {
	Criproxy string            `json:"criproxy"`
	Go       string            `json:"go,omitempty"`
	Modules  map[string]string `json:"modules,omitempty"` // :: path → version
}

// Version is the subcommand that prints the versions of criproxy and of what it is built with.
func Version(_ context.Context, args []string, out, errOut io.Writer) error {
	var output outputFlags
	fs := subFlags("version")
	output.flags(fs)
	if err := cmp.Or(parseSub(fs, args, out, "version prints the versions of criproxy and of what it is built with.", 0, 0), output.check("version")); err != nil {
		return err
	}
	v := versions{Criproxy: config.Version, Modules: map[string]string{}}
	modules := []string{"google.golang.org/grpc", "k8s.io/cri-api"}
	if info, ok := debug.ReadBuildInfo(); ok {
		v.Go = info.GoVersion
		for _, m := range info.Deps {
			if m.Path == modules[0] || m.Path == modules[1] {
				v.Modules[m.Path] = m.Version
			}
		}
	}
	if output.format != show.Text {
		return show.Encode(out, output.format, v)
	}
	fmt.Fprintf(out, "criproxy %s\n", v.Criproxy)
	if v.Go != "" {
		fmt.Fprintf(out, "built with %s\n", v.Go)
	}
	for _, path := range modules {
		if v.Modules[path] != "" {
			fmt.Fprintf(out, "%s %s\n", path, v.Modules[path])
		}
	}
	return nil
}
