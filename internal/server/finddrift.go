package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"syscall"

	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/drift"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/observe/telemetry"
)

// DriftReport lists fields and methods that the profile does not know. Its JSON is stable.
type DriftReport struct {
	Uncovered []drift.Finding `json:"uncovered"`      // in the descriptors
	Seen      []drift.Finding `json:"seen,omitempty"` // in calls of a running criproxy
	Running   bool            `json:"running"`        // a criproxy serves the configuration
}

// driftConfig returns the configuration with which the proxy finds drift in messages.
func driftConfig(c *config.Config, d director.Config) drift.Config {
	w := drift.Config{Profile: d.Profile, Schema: d.Schema, Found: telemetry.LogDrift}
	for _, b := range c.Backends {
		w.Backends = append(w.Backends, b.Name)
	}
	return w
}

// FindDrift searches for fields and methods that the profile does not know: in the descriptors
// and, if ask is set, in the calls of the criproxy that serves this configuration. It is no error if none serves it.
func FindDrift(ctx context.Context, c *config.Config, ask bool) (*DriftReport, error) {
	a, err := Read(c)
	if err != nil {
		return nil, err
	}
	r := &DriftReport{}
	if r.Uncovered, err = drift.Uncovered(a.Profile, a.Schema); err != nil {
		return nil, err
	}
	if c.Admin == "" || !ask {
		return r, nil
	}
	ctx, cancel := context.WithTimeout(ctx, AskTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", c.Admin)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return r, nil
	} else if err == nil {
		conn.Close() // the connection has shown that a criproxy serves
	}
	if _, err := admin.NewClient(c.Admin).Read(ctx, "drift", &r.Seen); err != nil {
		return nil, err
	}
	r.Running = true
	return r, nil
}

// Print shows the report to people.
func (r *DriftReport) Print(out io.Writer) {
	show := func(title string, all []drift.Finding) {
		if len(all) == 0 {
			return
		}
		fmt.Fprintf(out, "\n%s:\n", title)
		for _, f := range all {
			seen := ""
			if f.Count > 0 {
				seen = fmt.Sprintf(", seen %s, first in %s", capture.Count(f.Count, "time"), f.Method)
			}
			fmt.Fprintf(out, "  %s %s%s\n      %s\n", f.Kind, f.Where, seen, f.Suggest)
		}
	}
	show("Fields that look like ids, and have no rule", r.Uncovered)
	show("Seen by the running criproxy, and unknown to it", r.Seen)
	if len(r.Uncovered) == 0 {
		fmt.Fprintln(out, "\nNo field of the API looks like an id and has no rule.")
	}
	switch {
	case r.Running && len(r.Seen) == 0:
		fmt.Fprintln(out, "The running criproxy has seen nothing unknown.")
	case !r.Running:
		fmt.Fprintln(out, "No criproxy serves this configuration: the messages of clients and backends are unknown.")
	}
}
