package cli

import (
	"context"
	"io"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/show"
)

// ShowHooks is the subcommand that shows the plugins of a running criproxy.
func ShowHooks(ctx context.Context, args []string, out, _ io.Writer) error {
	about := `hooks shows the plugins of a running criproxy: how they are, at which points they are asked,
what came of it, and their last errors.`
	path, asJSON, err := showFlags("hooks", about, args, out)
	if err != nil {
		return err
	}
	return show.Hooks(ctx, path, asJSON, out)
}

// ShowStatus is the subcommand that shows how a running criproxy is doing.
func ShowStatus(ctx context.Context, args []string, out, _ io.Writer) error {
	about := `status shows how a running criproxy is doing: its sockets, the runtimes with what they have, the
plugins, the latest errors that clients got, and the configuration.`
	path, asJSON, err := showFlags("status", about, args, out)
	if err != nil {
		return err
	}
	return show.Status(ctx, path, asJSON, out)
}

func showFlags(name, about string, args []string, out io.Writer) (path string, asJSON bool, err error) {
	fs := subFlags(name)
	fs.StringVar(&path, "admin", config.DefaultAdmin, "the `PATH` of the admin socket (default "+config.DefaultAdmin+")")
	fs.BoolVar(&asJSON, "json", false, "print JSON, for programs")
	err = parseSub(fs, args, out, about, 0, 0)
	return path, asJSON, err
}
