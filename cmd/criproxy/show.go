package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/inspect"
)

// show is a subcommand that shows what a running criproxy has at the path of its name on
// the admin socket: by print, to a terminal, or as it is, for programs.
func show[T any](ctx context.Context, name, about string, args []string, out io.Writer, print func(io.Writer, *T)) error {
	fs := flag.NewFlagSet("criproxy "+name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	path := fs.String("admin", config.DefaultAdmin, "")
	asJSON := fs.Bool("json", false, "")
	switch err := fs.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintf(out, "criproxy %s %s\n\n  -admin PATH   its admin socket (default %s)\n  -json         for programs\n", name, about, config.DefaultAdmin)
		return err
	case err != nil:
		return &usageError{err}
	case fs.NArg() > 0:
		return &usageError{fmt.Errorf("%s takes no arguments, got %q", name, fs.Arg(0))}
	}
	response, err := newAdminClient(*path).get(ctx, "/"+name)
	if err != nil {
		return err
	}
	defer response.Body.Close() // it was only read
	if *asJSON {
		_, err := io.Copy(out, response.Body)
		return err
	}
	var answer T
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return fmt.Errorf("reading the answer of criproxy at %s: %w", *path, err)
	}
	print(inspect.Terminal{Writer: out}, &answer)
	return nil
}
