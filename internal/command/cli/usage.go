// Package cli has the commands of criproxy, each with its flags. cmd/criproxy lists them.
//
// A command is a function of its arguments and its output, in a file of its name. It parses its
// arguments with parseSub. Mistakes in them are a [UsageError]. [ExitCode] prints the error that a
// command returns.
package cli

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/criproxy/criproxy/internal/base/suggest"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/observe/show"
)

// A UsageError is a mistake on the command line.
type UsageError struct{ error }

// Usage returns err as a mistake on the command line.
func Usage(err error) error { return &UsageError{err} }

// ErrReported ends a command that has already printed what was wrong.
var ErrReported = errors.New("reported")

// ErrDegraded ends a command that has reported that criproxy works, but not with all runtimes.
var ErrDegraded = errors.New("degraded")

// A BlindError is why a command could not look at what it was asked about. Its exit code tells that from a command that
// has looked, and found something.
type BlindError struct{ error }

// ExitCode prints the err of a command for people and returns the exit code of the process: 2 for a mistake on the
// command line or a [BlindError], 3 for [ErrDegraded], 4 if nodes did not answer, 1 for any other failure. The command
// has no name if there is no such command.
func ExitCode(command string, err error, errOut io.Writer) int {
	var usage *UsageError
	var blind *BlindError
	var unanswered *admin.Unanswered
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.As(err, &unanswered):
		PrintError(errOut, err)
		return 4
	case errors.Is(err, ErrReported):
		return 1
	case errors.Is(err, ErrDegraded):
		return 3
	case errors.As(err, &usage):
		PrintError(errOut, usage.error)
		see := "criproxy help"
		if command != "" && command != "help" {
			see += " " + command
		}
		fmt.Fprintln(errOut, "criproxy: see", see)
		return 2
	case errors.As(err, &blind):
		PrintError(errOut, err)
		return 2
	default:
		PrintError(errOut, err)
		return 1
	}
}

// PrintError prints each line of err, which may be several errors joined. What runtimes and other nodes say in them cannot
// control the terminal.
func PrintError(errOut io.Writer, err error) {
	for _, line := range strings.Split(err.Error(), "\n") {
		fmt.Fprintf(calls.Terminal{Writer: errOut}, "criproxy: %s\n", line)
	}
}

// subFlags returns the flags of a subcommand.
func subFlags(name string) *flag.FlagSet {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(io.Discard) // errors are returned, and printed once
	return fs
}

// anyNumber is a number of arguments that no command line has.
const anyNumber = 1 << 20

// parseSub reads the arguments of a subcommand: flags, and from least to most other arguments. Flags may follow the
// other arguments. what describes the command, for -h.
func parseSub(fs *flag.FlagSet, args []string, out io.Writer, what string, least, most int) error {
	var rest []string
	for {
		err := fs.Parse(args)
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprintf(out, "criproxy %s\n\nFlags:\n", what)
			fs.VisitAll(func(f *flag.Flag) { printFlag(out, f) })
			return err
		}
		if err != nil {
			return &UsageError{fmt.Errorf("%s: %w", fs.Name(), flagError(fs, err))}
		}
		if fs.NArg() == 0 {
			break
		}
		rest = append(rest, fs.Arg(0))
		args = fs.Args()[1:]
	}
	switch n := len(rest); {
	case n < least:
		what := "a file"
		if fs.Name() == "where" {
			what = "an id, or NAME or NAMESPACE/NAME of a pod,"
		}
		return &UsageError{fmt.Errorf("%s: %s is missing", fs.Name(), what)}
	case n > most && most == 0:
		look := ""
		if _, err := capture.FormatOf(rest[0]); err == nil {
			look = "; criproxy view shows the calls of a recording and what happened meanwhile, and criproxy why what is wrong"
		}
		return &UsageError{fmt.Errorf("%s takes no arguments, got %q%s", fs.Name(), rest[0], look)}
	case n > most:
		return &UsageError{fmt.Errorf("%s takes %s; %q is one too many", fs.Name(), capture.Count(most, "argument"), rest[most])}
	}
	return fs.Parse(append([]string{"--"}, rest...))
}

// flagError adds the nearest flag to the error about an unknown flag.
func flagError(fs *flag.FlagSet, err error) error {
	name, ok := strings.CutPrefix(err.Error(), "flag provided but not defined: -")
	if !ok {
		return err
	}
	var names []string
	fs.VisitAll(func(one *flag.Flag) {
		names = append(names, "-"+one.Name)
	})
	return fmt.Errorf("there is no flag -%s%s", name, suggest.Nearest("-"+name, names))
}

// printFlag prints the help on a flag.
func printFlag(out io.Writer, f *flag.Flag) {
	name, text := flag.UnquoteUsage(f)
	fmt.Fprintf(out, "  -%s %s\n%s", f.Name, name, show.Wrap(text, 6, 77))
}
