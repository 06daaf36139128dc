package cli

import (
	"context"
	"errors"

	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/show"
	"github.com/criproxy/criproxy/internal/proxy/daemon"
	"github.com/criproxy/criproxy/internal/settings/config"
)

// changesOf returns what c would change in the process that serves c's admin socket. Its error says why the changes are
// unknown.
func changesOf(ctx context.Context, c *config.Config) ([]config.Change, error) {
	if c.Admin == "" {
		return nil, errors.New("there is no admin socket in this configuration")
	}
	ctx, cancel := context.WithTimeout(ctx, daemon.AskTimeout)
	defer cancel()
	var running config.Settings
	if _, err := admin.NewClient(c.Admin).Read(ctx, "settings", &running); err != nil {
		return nil, err
	}
	return running.Changes(c.Settings()), nil
}

// printChanges shows the changes to people.
func printChanges(out *show.Screen, all []config.Change, unknown string) {
	out.Gap()
	switch {
	case unknown != "":
		out.Say(0, "What this would change in the criproxy that runs is unknown: %s", unknown)
		return
	case len(all) == 0:
		out.Say(0, "Nothing would change in the criproxy that runs.")
		return
	}
	out.Say(0, "Changes in the criproxy that runs:")
	for _, c := range all {
		colour, restart := show.Plain, ""
		if c.Restart {
			colour, restart = show.Yellow, "   (waits for a restart)"
		}
		out.Paint(colour, 2, "%s: %s, was %s%s", c.Setting, config.OrNone(c.Will), config.OrNone(c.Was), restart)
	}
}
