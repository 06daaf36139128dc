package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/inspect"
)

// checkTimeout bounds how long check waits for a backend.
const checkTimeout = 5 * time.Second

// report is what check finds. Its JSON is stable.
type report struct {
	Listen   string          `json:"listen"`
	Backends []backendReport `json:"backends"`
	Methods  []methodReport  `json:"methods"`
	Warnings []string        `json:"warnings,omitempty"`

	Changes        []config.Change `json:"changes"`                  // in the process that serves now; null if
	ChangesUnknown string          `json:"changesUnknown,omitempty"` // that cannot be told, because of this

	Errors []string     `json:"errors,omitempty"`
	Drift  *driftReport `json:"drift,omitempty"` // with -drift
}

type backendReport struct {
	Name     string   `json:"name"`
	Address  string   `json:"address"`
	Runtime  string   `json:"runtime,omitempty"`  // "containerd v2.4.2"
	Versions []string `json:"versions,omitempty"` // packages of CRI that it speaks
	Error    string   `json:"error,omitempty"`
}

type methodReport struct {
	Method  string            `json:"method"`
	Goes    string            `json:"goes"`
	Request map[string]string `json:"request,omitempty"` // :: path → kind of what is translated there
	Reply   map[string]string `json:"reply,omitempty"`
}

// check is the subcommand that tries a configuration without serving it.
func check(ctx context.Context, args []string, out, _ io.Writer) error {
	fs, f := newFlags()
	asJSON := fs.Bool("json", false, "print the report as JSON")
	withDrift := fs.Bool("drift", false, "show what the profile does not know: fields that look like ids and have no rule, and what the criproxy that serves has seen")
	if err := f.parse(fs, args, out); err != nil {
		return err
	}
	f.dry = f.given["profile"] // which can be tried without anything to connect to
	cfg, err := f.readConfig()
	if err != nil {
		return err
	}
	changes, unknown := changesOf(ctx, cfg)
	r, err := examine(ctx, cfg)
	if err != nil {
		return err
	}
	r.Changes = changes
	if unknown != nil {
		r.ChangesUnknown = unknown.Error()
	}
	if *withDrift {
		if r.Drift, err = findDrift(ctx, cfg); err != nil {
			return err
		}
	}
	if *asJSON {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		if err := enc.Encode(r); err != nil {
			return err
		}
	} else {
		r.print(inspect.Terminal{Writer: out})
		printChanges(out, r.Changes, r.ChangesUnknown)
		if r.Drift != nil {
			r.Drift.print(inspect.Terminal{Writer: out})
		}
	}
	if len(r.Errors) > 0 {
		return errors.New(strings.Join(r.Errors, "\n"))
	}
	return nil
}

// examine compiles the configuration and asks each backend what it is.
func examine(ctx context.Context, c *config.Config) (*report, error) {
	c.StateDir = "" // what a running criproxy knows is its own business
	if len(c.Backends) == 0 {
		return examineProfile(c)
	}
	p, err := newProxy(c, Options{})
	if err != nil {
		return nil, err
	}
	defer p.close()
	r := &report{Listen: c.Listen, Backends: make([]backendReport, len(c.Backends)), Warnings: c.Warnings()}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for i, b := range c.Backends {
		wg.Go(func() {
			if p.backends()[i].cri {
				r.Backends[i] = examineRuntime(ctx, b, p.backends()[i].conn)
			} else {
				r.Backends[i] = examineServer(ctx, b, p.backends()[i].conn)
			}
			p.backends()[i].askDriver(ctx)
		})
	}
	wg.Wait()
	for _, b := range r.Backends {
		if b.Error != "" {
			r.Errors = append(r.Errors, fmt.Sprintf("backend %s (%s) %s", b.Name, b.Address, b.Error))
		}
	}
	for _, b := range p.backends()[1:] {
		if text := driverMismatch(p.backends()[0], b); text != "" {
			r.Errors = append(r.Errors, text)
		}
	}
	r.Methods = methodReports(p.director)
	r.Warnings = append(r.Warnings, p.director.Assumptions()...)
	return r, nil
}

// examineProfile compiles the profile for two backends that nobody connects to.
func examineProfile(c *config.Config) (*report, error) {
	a, err := readAPI(c)
	if err != nil {
		return nil, err
	}
	a.Backends = []director.Backend{{}, {Name: "NAME"}}
	dir, err := director.New(a.Config)
	if err != nil {
		return nil, err
	}
	return &report{Methods: methodReports(dir)}, nil
}

func methodReports(d *director.Director) []methodReport {
	var all []methodReport
	for _, fate := range d.Fates() {
		all = append(all, methodReport{Method: fate.Method, Goes: fate.Goes, Request: kinds(fate.Request), Reply: kinds(fate.Reply)})
	}
	return all
}

func kinds(fields []director.Translated) map[string]string {
	m := map[string]string{}
	for _, f := range fields {
		m[f.Path] = f.Kind
	}
	return m
}

// examineServer asks a backend of another API than CRI for its services. Most do not
// tell; that they say so shows that they are there.
func examineServer(ctx context.Context, b config.Backend, conn *director.Conn) backendReport {
	r := backendReport{Name: director.Backend{Name: b.Name}.String(), Address: b.Address}
	versions, err := conn.Versions(ctx)
	if err == nil {
		r.Versions = versions
		_, err = codec.Reflect(ctx, conn)
	}
	if err != nil && status.Code(err) != codes.Unimplemented {
		r.Error = strings.TrimPrefix(status.Convert(err).Message(), fmt.Sprintf("criproxy: backend %s ", conn))
	}
	r.Runtime = "is there"
	return r
}

func examineRuntime(ctx context.Context, b config.Backend, conn *director.Conn) backendReport {
	r := backendReport{Name: director.Backend{Name: b.Name}.String(), Address: b.Address}
	fail := func(err error) backendReport {
		r.Error = strings.TrimPrefix(status.Convert(err).Message(), fmt.Sprintf("criproxy: backend %s ", conn))
		return r
	}
	var err error
	if r.Versions, err = conn.Versions(ctx); err != nil {
		return fail(err)
	}
	var v runtimeapi.VersionResponse
	if err := conn.Invoke(ctx, runtimeapi.RuntimeService_Version_FullMethodName, &runtimeapi.VersionRequest{}, &v); err != nil {
		return fail(err)
	}
	r.Runtime = v.GetRuntimeName() + " " + v.GetRuntimeVersion()
	return r
}

// print shows the report to people.
func (r *report) print(out io.Writer) {
	if len(r.Backends) > 0 {
		fmt.Fprintf(out, "Listens on %s\n\nBackends, the primary first:\n", r.Listen)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, b := range r.Backends {
		what := b.Runtime
		if len(b.Versions) > 0 {
			what += "\tspeaks " + strings.Join(b.Versions, ", ")
		}
		if b.Error != "" {
			what = "FAILS\t" + b.Error
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\n", b.Name, b.Address, what)
	}
	_ = w.Flush()
	if len(r.Backends) > 0 {
		fmt.Fprintln(out)
	}
	fmt.Fprintf(out, "Methods, and what is translated in their requests (>) and replies (<):\n")
	service := ""
	for _, m := range r.Methods {
		if dir := path.Dir(m.Method); dir != service {
			service = dir
			fmt.Fprintf(out, "  %s\n", strings.TrimPrefix(service, "/"))
		}
		fmt.Fprintf(out, "    %-25s goes %s\n", path.Base(m.Method), m.Goes)
		for _, p := range slices.Sorted(maps.Keys(m.Request)) {
			fmt.Fprintf(out, "      > %-10s %s\n", m.Request[p], p)
		}
		for _, p := range slices.Sorted(maps.Keys(m.Reply)) {
			fmt.Fprintf(out, "      < %-10s %s\n", m.Reply[p], p)
		}
	}
	if len(r.Warnings) > 0 {
		fmt.Fprintf(out, "\nWorks, but take note:\n")
		for _, warning := range r.Warnings {
			fmt.Fprint(out, wrap("- "+warning, 2, 100))
		}
	}
}
