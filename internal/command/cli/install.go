package cli

import (
	"context"
	"flag"
	"io"

	"github.com/criproxy/criproxy/internal/command/node"
	"github.com/criproxy/criproxy/internal/settings/config"
)

// Install is the subcommand that prepares a takeover of a runtime's socket.
func Install(_ context.Context, args []string, out, _ io.Writer) error {
	var t node.Takeover
	fs := subFlags("install")
	fs.StringVar(&t.Path, "takeover", "", "the `PATH` of the runtime's own socket, where criproxy will listen: /run/containerd/containerd.sock or /run/crio/crio.sock")
	addTakeoverFlags(fs, &t)
	about := "install -takeover PATH makes criproxy listen at PATH, and containerd or CRI-O at another path beside it. It changes these files:"
	if err := parseSub(fs, args, out, about, 0, 0); err != nil {
		return err
	}
	if err := t.CheckPath(); err != nil {
		return &UsageError{err}
	}
	return t.Install(out)
}

// Uninstall is the subcommand that reverts Install.
func Uninstall(_ context.Context, args []string, out, _ io.Writer) error {
	var t node.Takeover
	fs := subFlags("uninstall")
	addTakeoverFlags(fs, &t)
	if err := parseSub(fs, args, out, "uninstall reverts what install changed in these files:", 0, 0); err != nil {
		return err
	}
	return t.Uninstall(out)
}

func addTakeoverFlags(fs *flag.FlagSet, t *node.Takeover) {
	fs.StringVar(&t.Containerd, "containerd-config", "/etc/containerd/config.toml", "containerd's configuration `FILE`")
	fs.StringVar(&t.CRIO, "crio-drop-ins", "/etc/crio/crio.conf.d", "the `FOLDER` of CRI-O's drop-ins")
	fs.StringVar(&t.Config, "config", config.DefaultConfig, "criproxy's configuration `FILE`")
	fs.BoolVar(&t.DryRun, "dry-run", false, "say what would be changed, and change nothing")
}
