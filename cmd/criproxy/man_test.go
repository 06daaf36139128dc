package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/command/cli"
	"github.com/criproxy/criproxy/internal/config"
)

var updateMan = flag.Bool("update-man", false, "write docs/criproxy.8 anew")

// The manual page is made from the same tables as the help, so they cannot differ.
func TestManualPageIsCurrent(t *testing.T) {
	t.Parallel()
	path := filepath.Join("..", "..", "docs", "criproxy.8")
	want := manualPage()
	if *updateMan {
		require.NoError(t, os.WriteFile(path, []byte(want), 0o644))
	}
	got := readFile(t, path)
	assert.True(t, want == string(got), "flags or commands have changed: make man")
}

func TestCompletionInPackagesIsCurrent(t *testing.T) {
	for shell, name := range map[string]string{"bash": "criproxy.bash", "zsh": "_criproxy", "fish": "criproxy.fish"} {
		var want bytes.Buffer
		shells()[shell](&want)
		path := filepath.Join("..", "..", "packaging", "completion", name)
		if *updateMan {
			require.NoError(t, os.WriteFile(path, want.Bytes(), 0o644))
		}
		got := readFile(t, path)
		assert.True(t, want.String() == string(got), "flags or commands have changed: make man")
	}
}

func manualPage() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	item := func(term, text string) { line(".TP\n%s\n%s", term, roff(text)) }
	line(`.\" Made by make man from cmd/criproxy. Change it there.`)
	line(`.TH CRIPROXY 8 "" criproxy "System administration"`)
	line(".SH NAME\ncriproxy \\- one CRI socket in front of several container runtimes")
	line(".SH SYNOPSIS\n.B criproxy\n.RI [ command ]\n.RI [ flags ]")
	line(".SH DESCRIPTION\n%s", roff("criproxy stands between kubelet and the container runtimes of a node. It sends each call to the runtime that it concerns, merges the answers of several runtimes into one, and translates between the versions of CRI that kubelet and the runtimes speak. It leaves messages as they are, except for the fields that hold names."))
	line(".PP\n%s", roff("The runtime without a name is the primary: it gets every call that nothing directs elsewhere. A pod goes to another runtime if the configuration maps the handler of its RuntimeClass, or if it has the annotation kubernetes.io/target-runtime. Ids and images of other runtimes begin with the runtime's name."))
	line(".SH COMMANDS")
	for _, c := range commands() {
		item(fmt.Sprintf(`\fB%s\fR %s`, roff(c.name), roff(c.usage)), c.short)
	}
	line(".SH FLAGS OF SERVE AND CHECK")
	fs, _ := cli.NewFlags()
	var log []string
	fs.VisitAll(func(f *flag.Flag) {
		if cli.IsKlog(f.Name) {
			if f.Name != "v" {
				log = append(log, "-"+f.Name)
			}
			return
		}
		name, text := flag.UnquoteUsage(f)
		item(fmt.Sprintf(`\fB%s\fR \fI%s\fR`, roff("-"+f.Name), roff(name)), text)
	})
	item(`\fB\-v\fR \fILEVEL\fR`, "how much to log: 2 logs calls that fail, 3 also calls that change something, with request and reply, 4 also status calls, 5 also lists")
	line(".PP\nAnd the other flags of klog: %s.", roff(strings.Join(log, ", ")))
	server, _ := find(nil)
	serve := server.flags()
	for _, c := range commands() {
		if c.name == server.name {
			continue // listed above
		}
		flags := c.flags()
		if own := len(flags) - len(serve); own >= 0 && slices.Equal(flags[own:], serve) { // listed above
			flags = flags[:own]
		}
		if len(flags) == 0 {
			continue
		}
		line(".SH FLAGS OF %s", strings.ToUpper(c.name))
		for _, f := range flags {
			item(fmt.Sprintf(`\fB%s\fR \fI%s\fR`, roff("-"+f.name), roff(f.value)), f.text)
		}
	}
	line(".SH ENVIRONMENT")
	item(".B CRIPROXY_ADMIN", "the admin socket that commands ask, unless -admin is given")
	item(".B CRIPROXY_NAMESPACE", "the namespace of criproxy's pods, which kubectl reaches for -node and kube://; criproxy unless it is set")
	item(".B CRIPROXY_NODES", "the nodes that commands ask, as in -nodes, unless flags choose some; kubectl criproxy sets it to all")
	item(".B NO_COLOR", "if it is not empty, commands print no colours on terminals")
	line(".SH FILES")
	item(".I /etc/criproxy/config.yaml", "the configuration of the service; criproxy reads it again when it changes")
	item(".I "+config.DefaultListen, "the socket that kubelet connects to")
	item(".I "+config.DefaultAdmin, "the socket for criproxy's own commands, only for the user that criproxy runs as")
	item(".I "+config.DefaultHooks, "the folder in which plugins register, which may change or refuse calls")
	item(".I "+config.DefaultStateDir, "cached answers of the runtimes, for restarts")
	line(".SH SIGNALS")
	item(".B SIGHUP", "read the configuration again")
	item(".B SIGUSR1", "save the latest calls to a file")
	item(".B SIGUSR2", "start the installed program as a new process, hand all sockets over to it, and end when it serves")
	item(".B SIGTERM", "let calls under way finish for up to 4 seconds, and end")
	line(".SH EXIT STATUS\n%s", roff("0 for success, 1 for a failure or a finding, which of why is an error or a warning that is not over, 2 for a mistake on the command line, or from why if it could not look; 3 from status -exit-code if a runtime is slow or gone; 4 if some of the nodes that -nodes chose did not answer."))
	line(".SH SEE ALSO\n.BR kubelet (8),\n.BR crictl (1),\n.BR systemd.socket (5)\n.PP\n/usr/share/doc/criproxy, https://github.com/criproxy/criproxy")
	return b.String()
}

// roff escapes text so that troff shows it unchanged.
func roff(text string) string {
	text = strings.ReplaceAll(text, `\`, `\e`)
	text = strings.ReplaceAll(text, "-", `\-`)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}
	return text
}
