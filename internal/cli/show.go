package cli

import (
	"context"
	"io"

	"github.com/criproxy/criproxy/internal/show"
)

// ShowHooks is the subcommand that shows the plugins of a running criproxy.
func ShowHooks(ctx context.Context, args []string, out, _ io.Writer) error {
	fs := subFlags("hooks")
	var admin adminFlag
	var output outputFlags
	admin.flags(fs)
	output.flags(fs)
	about := `hooks shows the plugins of a running criproxy: how they are, at which points they are asked,
what came of it, and their last errors.`
	if err := parseSub(fs, args, out, about, 0, 0); err != nil {
		return err
	}
	if err := output.check("hooks"); err != nil {
		return err
	}
	path, err := admin.path(ctx)
	if err != nil {
		return err
	}
	return show.Hooks(ctx, show.Query{Path: path, Format: output.format, Screen: show.NewScreen(out)})
}

// ShowStatus is the subcommand that shows how a running criproxy is doing.
func ShowStatus(ctx context.Context, args []string, out, _ io.Writer) error {
	fs := subFlags("status")
	var admin adminFlag
	var output outputFlags
	admin.flags(fs)
	output.flags(fs)
	again := fs.Bool("watch", false, "look again and again, until Ctrl-C")
	check := fs.Bool("exit-code", false, "exit with 3 if a runtime is slow or gone, and with 1 if criproxy is not ready")
	about := `status shows how a running criproxy is doing: its sockets, the runtimes with what they have and
when they were away, the plugins, the latest errors that clients got, how far back the recorder
reaches, and the configuration.`
	if err := parseSub(fs, args, out, about, 0, 0); err != nil {
		return err
	}
	if err := output.check("status"); err != nil {
		return err
	}
	print := func(to *show.Screen) error {
		path, err := admin.path(ctx)
		if err != nil {
			return err
		}
		r, err := show.Status(ctx, show.Query{Path: path, Format: output.format, Screen: to})
		switch {
		case err != nil || !*check:
			return err
		case !r.Ready:
			return ErrReported
		case r.Trouble() != "":
			return ErrDegraded
		}
		return nil
	}
	if *again {
		*check = false // there is no end to it
		return watch(ctx, out, print)
	}
	return print(show.NewScreen(out))
}
