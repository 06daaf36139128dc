package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/criproxy/criproxy/internal/admin"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/daemon"
)

// changesOf returns what c would change in the process that serves its admin socket. Its error
// says why that is unknown.
func changesOf(ctx context.Context, c *config.Config) ([]config.Change, error) {
	path := c.Admin
	if path == "" {
		return nil, errors.New("there is no admin socket in this configuration")
	}
	ctx, cancel := context.WithTimeout(ctx, daemon.AskTimeout)
	defer cancel()
	response, err := admin.NewClient(path).Get(ctx, "/settings")
	if err != nil {
		return nil, err
	}
	defer response.Body.Close() // it was only read
	var running config.Settings
	if err := json.NewDecoder(response.Body).Decode(&running); err != nil {
		return nil, fmt.Errorf("reading the answer of criproxy at %s: %w", path, err)
	}
	return running.Changes(c.Settings()), nil
}

// printChanges shows the changes to people.
func printChanges(out io.Writer, all []config.Change, unknown string) {
	switch {
	case unknown != "":
		fmt.Fprintf(out, "\nWhat it would change is unknown: %s\n", unknown)
		return
	case len(all) == 0:
		fmt.Fprintln(out, "\nNothing would change in the criproxy that serves now.")
		return
	}
	fmt.Fprintln(out, "\nIn the criproxy that serves now it would change:")
	for _, c := range all {
		restart := ""
		if c.Restart {
			restart = "   (waits for a restart)"
		}
		fmt.Fprintf(out, "  %s: %s, was %s%s\n", c.Setting, config.OrNone(c.Will), config.OrNone(c.Was), restart)
	}
}
