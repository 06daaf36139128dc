package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"syscall"

	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/drift"
)

// drift is what the proxy watches for.
func (c *Config) drift(d director.Config) drift.Config {
	w := drift.Config{Profile: d.Profile, Schema: d.Schema, Found: logDrift}
	for _, b := range c.Backends {
		w.Backends = append(w.Backends, b.Name)
	}
	return w
}

// logDrift is told of each finding once.
func logDrift(f drift.Finding) {
	what := "Seen, and not known: a method"
	switch f.Kind {
	case drift.Field:
		what = "Seen, and not known: a field"
	case drift.ID:
		what = "Seen, and not translated: a field that looks like an id"
	}
	klog.InfoS(what, "where", f.Where, "method", f.Method, "suggest", f.Suggest)
}

// driftReport is what the profile does not know. Its JSON is stable.
type driftReport struct {
	Uncovered []drift.Finding `json:"uncovered"`      // by the descriptors
	Seen      []drift.Finding `json:"seen,omitempty"` // by a running criproxy
	Running   bool            `json:"running"`        // there is one to ask
}

// serveDrift answers GET /drift with what was seen.
func (a *admin) serveDrift(w *drift.Watch) {
	a.mux.HandleFunc("GET /drift", func(rw http.ResponseWriter, _ *http.Request) { writeJSON(rw, w.Findings()) })
}

// findDrift looks for what the profile does not know: in the descriptors, and in what
// the criproxy that serves this configuration has seen, if there is one.
func (c *Config) findDrift(ctx context.Context) (*driftReport, error) {
	a, err := c.api()
	if err != nil {
		return nil, err
	}
	r := &driftReport{}
	if r.Uncovered, err = drift.Uncovered(a.Profile, a.Schema); err != nil {
		return nil, err
	}
	if c.Admin == "" || len(c.Backends) == 0 {
		return r, nil
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", c.Admin)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return r, nil
	} else if err == nil {
		conn.Close() // there is somebody to ask
	}
	response, err := newAdminClient(c.Admin).get(ctx, "/drift")
	if err != nil {
		return nil, err
	}
	defer response.Body.Close() // which has been read
	if err := json.NewDecoder(response.Body).Decode(&r.Seen); err != nil {
		return nil, fmt.Errorf("reading what criproxy has seen from %s: %w", c.Admin, err)
	}
	r.Running = true
	return r, nil
}

func (r *driftReport) print(out io.Writer) {
	show := func(title string, all []drift.Finding) {
		if len(all) == 0 {
			return
		}
		fmt.Fprintf(out, "\n%s:\n", title)
		for _, f := range all {
			seen := ""
			if f.Count > 0 {
				seen = fmt.Sprintf(", seen %d times, first in %s", f.Count, f.Method)
			}
			fmt.Fprintf(out, "  %s %s%s\n      %s\n", f.Kind, f.Where, seen, f.Suggest)
		}
	}
	show("Fields that look like ids, and have no rule", r.Uncovered)
	show("Seen by the criproxy that serves, and not known to it", r.Seen)
	if len(r.Uncovered) == 0 {
		fmt.Fprintln(out, "\nNo field of the API looks like an id and has no rule.")
	}
	switch {
	case r.Running && len(r.Seen) == 0:
		fmt.Fprintln(out, "The criproxy that serves has seen nothing that it does not know.")
	case !r.Running:
		fmt.Fprintln(out, "No criproxy serves this configuration: nothing is known of what clients and backends send.")
	}
}
