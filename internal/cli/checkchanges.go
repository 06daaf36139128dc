package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/criproxy/criproxy/internal/admin"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/daemon"
	"github.com/criproxy/criproxy/internal/show"
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
func printChanges(out *show.Screen, all []config.Change, unknown string) {
	out.Gap()
	switch {
	case unknown != "":
		out.Say(0, "What it would change is unknown: %s", unknown)
		return
	case len(all) == 0:
		out.Say(0, "Nothing would change in the criproxy that serves now.")
		return
	}
	out.Say(0, "In the criproxy that serves now it would change:")
	for _, c := range all {
		colour, restart := show.Plain, ""
		if c.Restart {
			colour, restart = show.Yellow, "   (waits for a restart)"
		}
		out.Paint(colour, 2, "%s: %s, was %s%s", c.Setting, config.OrNone(c.Will), config.OrNone(c.Was), restart)
	}
}
