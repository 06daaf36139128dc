package fakecri

import (
	"bytes"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
)

// A shell runs these commands: echo, exit, true, false, env, hostname, cat, head -c, and sh -c with
// several commands separated by ";". A command has no input. One that ends in ">&2" prints to stderr.
type shell struct {
	c              *container
	hostname       string
	stdout, stderr io.Writer
}

// An output keeps the first 16 MiB.
type output struct{ bytes []byte }

func (o *output) Write(b []byte) (int, error) {
	o.bytes = append(o.bytes, b[:min(len(b), maxOutput-len(o.bytes))]...)
	return len(b), nil
}

// run returns the exit code, or an error if there is no such command.
func (sh *shell) run(argv []string) (int32, error) {
	out := sh.stdout
	if n := len(argv) - 1; n > 0 && argv[n] == ">&2" {
		out, argv = sh.stderr, argv[:n]
	}
	if len(argv) == 0 {
		return 0, fmt.Errorf("the command is empty")
	}
	args := argv[1:]
	switch path.Base(argv[0]) {
	case "sh":
		return sh.script(args), nil
	case "true":
		return 0, nil
	case "false":
		return 1, nil
	case "exit":
		code, err := strconv.Atoi(strings.Join(args, ""))
		if err != nil {
			return 2, nil
		}
		return int32(code & 0xff), nil
	case "echo":
		end := "\n"
		if len(args) > 0 && args[0] == "-n" {
			end, args = "", args[1:]
		}
		fmt.Fprint(out, strings.Join(args, " ")+end)
	case "env":
		fmt.Fprintf(out, "PATH=/bin\nHOSTNAME=%s\n", sh.hostname)
		for _, kv := range sh.c.config.GetEnvs() {
			fmt.Fprintf(out, "%s=%s\n", kv.GetKey(), kv.GetValue())
		}
	case "hostname":
		fmt.Fprintln(out, sh.hostname)
	case "cat", "head":
		return sh.read(out, args)
	default:
		return 0, fmt.Errorf("exec: %q: executable file not found in $PATH", argv[0])
	}
	return 0, nil
}

// script runs commands separated by ";", which follow -c, until one of them is exit.
func (sh *shell) script(args []string) (code int32) {
	switch {
	case len(args) == 0:
		return 0 // there are no commands to read
	case len(args) < 2 || args[0] != "-c":
		return 2
	}
	for line := range strings.SplitSeq(args[1], ";") {
		argv := strings.Fields(line)
		if len(argv) == 0 {
			continue
		}
		var err error
		if code, err = sh.run(argv); err != nil {
			fmt.Fprintf(sh.stderr, "sh: %s: not found\n", argv[0])
			code = 127
		}
		if argv[0] == "exit" {
			break
		}
	}
	return code
}

// read prints files: cat FILE, head -c N FILE.
func (sh *shell) read(out io.Writer, args []string) (int32, error) {
	limit := -1
	if i := slices.Index(args, "-c"); i >= 0 && i+1 < len(args) {
		limit, _ = strconv.Atoi(args[i+1])
		args = slices.Delete(slices.Clone(args), i, i+2)
	}
	for _, name := range args {
		var content []byte
		switch {
		case name == "/etc/hostname":
			content = []byte(sh.hostname + "\n")
		case name == "/etc/hosts":
			content = []byte("127.0.0.1\tlocalhost\n")
		case name == "/dev/zero" && limit >= 0:
			content = bytes.Repeat([]byte{0}, min(limit, maxOutput+1))
		default:
			fmt.Fprintf(sh.stderr, "%s: no such file or directory\n", name)
			return 1, nil
		}
		if limit >= 0 {
			content = content[:min(limit, len(content))]
		}
		_, _ = out.Write(content) // never fails
	}
	return 0, nil
}
