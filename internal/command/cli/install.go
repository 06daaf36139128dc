package cli

import (
	"context"
	"errors"
	"flag"
	"io"

	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/director/dial"
	"github.com/criproxy/criproxy/internal/command/takeover"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/server"
)

// Install is the subcommand that prepares a takeover of a runtime's socket.
func Install(ctx context.Context, args []string, out, _ io.Writer) error {
	var t takeover.Takeover
	fs := subFlags("install")
	fs.StringVar(&t.Path, "takeover", "", "the `PATH` of the runtime's own socket, where criproxy will listen: /run/containerd/containerd.sock or /run/crio/crio.sock")
	addTakeoverFlags(fs, &t)
	about := `install -takeover PATH makes criproxy listen at PATH, and containerd or CRI-O at another path beside it. It changes
the configuration of criproxy and of the runtime that serves PATH, and nothing if neither of the two serves it.
-dry-run shows the changes.`
	if err := parseSub(fs, args, out, about, 0, 0); err != nil {
		return err
	}
	if err := t.CheckPath(); err != nil {
		return &UsageError{err}
	}
	t.Runtime = func(path string) (string, error) { return runtimeAt(ctx, path) }
	return t.Install(out)
}

// runtimeAt asks the server at a path for the name of its runtime, in any version of CRI.
func runtimeAt(ctx context.Context, path string) (string, error) {
	a, err := server.Read(&config.Config{})
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, server.AskTimeout)
	defer cancel()
	var reply runtimeapi.VersionResponse
	err = callRuntime(ctx, a, config.Backend{Address: path}, runtimeapi.RuntimeService_Version_FullMethodName, &runtimeapi.VersionRequest{}, &reply)
	if err != nil {
		return "", errors.New(status.Convert(err).Message())
	}
	return reply.GetRuntimeName(), nil
}

// callRuntime makes one call to a runtime, in any version of its API.
func callRuntime(ctx context.Context, a server.API, b config.Backend, method string, request, reply any) error {
	conn, err := dial.New(dial.Config{Name: b.Name, Address: b.Address, Profile: a.Profile, Schema: a.Schema, Conversions: a.Conversions})
	if err != nil {
		return err
	}
	defer conn.Close() // nothing is under way
	return conn.Invoke(ctx, method, request, reply)
}

// Uninstall is the subcommand that reverts Install.
func Uninstall(_ context.Context, args []string, out, _ io.Writer) error {
	var t takeover.Takeover
	fs := subFlags("uninstall")
	addTakeoverFlags(fs, &t)
	if err := parseSub(fs, args, out, "uninstall reverts what install changed in the configuration of criproxy and of the runtime. -dry-run shows the changes.", 0, 0); err != nil {
		return err
	}
	return t.Uninstall(out)
}

func addTakeoverFlags(fs *flag.FlagSet, t *takeover.Takeover) {
	fs.StringVar(&t.Containerd, "containerd-config", "/etc/containerd/config.toml", "containerd's configuration `FILE`")
	fs.StringVar(&t.CRIO, "crio-drop-ins", "/etc/crio/crio.conf.d", "the `FOLDER` of CRI-O's drop-ins")
	fs.StringVar(&t.Config, "config", config.DefaultConfig, "criproxy's configuration `FILE`")
	fs.BoolVar(&t.DryRun, "dry-run", false, "say what would be changed, and change nothing")
}
