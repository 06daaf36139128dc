package cli

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/criproxy/criproxy/internal/observe/admin"
)

// DialStdio is the subcommand through which a criproxy on another machine reaches the admin socket of this one.
func DialStdio(ctx context.Context, args []string, out, _ io.Writer) error {
	fs := subFlags("dial-stdio")
	var asked string
	addAdminFlag(fs, &asked)
	about := `dial-stdio copies between its standard streams and the admin socket of this node, until either ends.
Commands with -admin ssh://HOST or -node NODE run it on the node; nobody needs to type it.`
	if err := parseSub(fs, args, out, about, 0, 0); err != nil {
		return err
	}
	path, err := adminSocket(ctx, asked)
	if err != nil {
		return err
	}
	if admin.IsRemote(path) {
		return &UsageError{errors.New("dial-stdio reaches only sockets of this node: want -admin PATH")}
	}
	return admin.CopyTo(ctx, path, os.Stdin, out)
}
