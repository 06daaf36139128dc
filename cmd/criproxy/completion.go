package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/criproxy/criproxy/internal/base/suggest"
	"github.com/criproxy/criproxy/internal/command/cli"
)

// flagHelp is what the help of a command says about a flag.
type flagHelp struct {
	name, value, text string
}

// flags returns the flags of a command, which it reads from the command's help.
func (c command) flags() []flagHelp {
	var help bytes.Buffer
	_ = c.run(context.Background(), []string{"-h"}, &help, io.Discard) // the error only says that help was printed
	var all []flagHelp
	for line := range strings.Lines(help.String()) {
		line = strings.TrimRight(line, "\n")
		if flag, ok := strings.CutPrefix(line, "  -"); ok {
			name, value, _ := strings.Cut(flag, " ")
			all = append(all, flagHelp{name: name, value: strings.TrimSpace(value)})
		} else if text, ok := strings.CutPrefix(line, "      "); ok && len(all) > 0 {
			last := &all[len(all)-1]
			last.text = strings.TrimSpace(last.text + " " + text)
		}
	}
	return all
}

// shells returns the shells that completion knows, each with the function that prints its script.
func shells() map[string]func(io.Writer) {
	return map[string]func(io.Writer){"bash": bashCompletion, "zsh": zshCompletion, "fish": fishCompletion}
}

// completion is the subcommand that prints the script with which a shell completes command lines.
func completion(_ context.Context, args []string, out, _ io.Writer) error {
	known := []string{"bash", "zsh", "fish"}
	switch {
	case len(args) > 1 && args[0] == "kubectl":
		kubectlCompletion(out, args[1:])
		return nil
	case len(args) == 1 && wantsHelp(args[0]):
		fmt.Fprintln(out, "criproxy completion SHELL prints the script with which a shell completes command lines of criproxy. SHELL is one of", strings.Join(known, ", "))
		return nil
	case len(args) == 1 && strings.HasPrefix(args[0], "-"):
		return cli.Usage(fmt.Errorf("completion: there is no flag %s", args[0]))
	case len(args) != 1:
		return cli.Usage(fmt.Errorf("completion: want the name of a shell, one of %s", strings.Join(known, ", ")))
	}
	print := shells()[args[0]]
	if print == nil {
		return cli.Usage(fmt.Errorf("completion: %q: want one of %s%s", args[0], strings.Join(known, ", "), suggest.Nearest(args[0], known)))
	}
	print(out)
	return nil
}

// kubectlCompletion prints what the last word of a command line of the plugin can be, as kubectl reads it.
func kubectlCompletion(out io.Writer, words []string) {
	last := len(words) - 1
	print := func(what, about string) {
		if strings.HasPrefix(what, words[last]) {
			fmt.Fprintf(out, "%s\t%s\n", what, about)
		}
	}
	const noFiles, files = ":4", ":0"
	if last == 0 || words[0] == "help" {
		for _, c := range commands() {
			print(c.name, c.short)
		}
		fmt.Fprintln(out, noFiles)
		return
	}
	c, _ := find(words[:1])
	for _, f := range c.flags() {
		print("--"+f.name, f.text)
	}
	fmt.Fprintln(out, files)
}

func bashCompletion(out io.Writer) {
	var names []string
	fmt.Fprint(out, "# Made by criproxy completion bash.\n_criproxy() {\n\tlocal word=${COMP_WORDS[COMP_CWORD]} command=serve flags=\n"+
		"\t[[ $COMP_CWORD -gt 1 && ${COMP_WORDS[1]} != -* ]] && command=${COMP_WORDS[1]}\n\tcase $command in\n")
	for _, c := range commands() {
		names = append(names, c.name)
		var flags []string
		for _, f := range c.flags() {
			flags = append(flags, "-"+f.name)
		}
		fmt.Fprintf(out, "\t%s) flags='%s' ;;\n", c.name, strings.Join(flags, " "))
	}
	fmt.Fprintf(out, "\tesac\n\tCOMPREPLY=()\n\tif [[ $word == -* ]]; then\n\t\tCOMPREPLY=($(compgen -W \"$flags\" -- \"$word\"))\n"+
		"\telif [[ $COMP_CWORD == 1 || $command == help ]]; then\n\t\tCOMPREPLY=($(compgen -W '%s' -- \"$word\"))\n\tfi\n}\ncomplete -o default -F _criproxy criproxy\n", strings.Join(names, " "))
}

func zshCompletion(out io.Writer) {
	quote := func(s string) string { return "'" + strings.NewReplacer("'", `'\''`, ":", `\:`).Replace(s) + "'" }
	fmt.Fprint(out, "#compdef criproxy\n# Made by criproxy completion zsh.\n_criproxy() {\n\tlocal -a commands flags\n\tcommands=(\n")
	for _, c := range commands() {
		fmt.Fprintf(out, "\t\t%s\n", "'"+c.name+":'"+quote(c.short))
	}
	fmt.Fprint(out, "\t)\n\tcase $words[2] in\n")
	for _, c := range commands() {
		fmt.Fprintf(out, "\t%s) flags=(\n", c.name)
		for _, f := range c.flags() {
			fmt.Fprintf(out, "\t\t%s\n", "'-"+f.name+":'"+quote(f.text))
		}
		fmt.Fprint(out, "\t\t) ;;\n")
	}
	fmt.Fprint(out, "\tesac\n\tif [[ $PREFIX == -* ]]; then\n\t\t_describe -o flag flags\n\telif (( CURRENT == 2 )) || [[ $words[2] == help ]]; then\n\t\t_describe command commands\n\telse\n\t\t_files\n\tfi\n}\n_criproxy \"$@\"\n")
}

func fishCompletion(out io.Writer) {
	quote := func(s string) string { return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(s) + "'" }
	fmt.Fprintln(out, "# Made by criproxy completion fish.")
	for _, c := range commands() {
		fmt.Fprintf(out, "complete -c criproxy -n __fish_use_subcommand -f -a %s -d %s\n", c.name, quote(c.short))
		for _, f := range c.flags() {
			takes := ""
			if f.value != "" {
				takes = " -r"
			}
			fmt.Fprintf(out, "complete -c criproxy -n '__fish_seen_subcommand_from %s' -o %s%s -d %s\n", c.name, f.name, takes, quote(f.text))
		}
	}
}
