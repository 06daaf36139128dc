package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"

	"github.com/criproxy/criproxy/internal/version"
)

// Version is the subcommand that prints the versions of criproxy and of what it is built with.
func Version(_ context.Context, args []string, out, _ io.Writer) error {
	if len(args) > 0 {
		return &UsageError{errors.New("version takes no arguments")}
	}
	fmt.Fprintf(out, "criproxy %s\n", version.Version)
	if info, ok := debug.ReadBuildInfo(); ok {
		fmt.Fprintf(out, "built with %s\n", info.GoVersion)
		for _, m := range info.Deps {
			if m.Path == "k8s.io/cri-api" || m.Path == "google.golang.org/grpc" {
				fmt.Fprintf(out, "%s %s\n", m.Path, m.Version)
			}
		}
	}
	return nil
}
