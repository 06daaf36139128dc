package server

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	reflection "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/config"
)

// Examination describes what criproxy would do with a configuration. Its JSON is stable.
type Examination struct {
	Listen   string          `json:"listen"`
	Backends []backendReport `json:"backends"`
	Methods  []methodReport  `json:"methods"`
	Warnings []string        `json:"warnings,omitempty"`
	Notes    []string        `json:"notes,omitempty"` // useful to know, but no mistakes
	Errors   []string        `json:"errors,omitempty"`
}

// backendReport is what a backend says it is, or why it does not.
type backendReport struct {
	Name     string   `json:"name"`
	Address  string   `json:"address"`
	Runtime  string   `json:"runtime,omitempty"`  // "containerd v2.4.2"
	Versions []string `json:"versions,omitempty"` // packages of CRI that it speaks
	Error    string   `json:"error,omitempty"`

	lacksMetrics bool // it has no ListPodSandboxMetrics
}

// methodReport says where the calls of a method go, and which of its fields are translated.
type methodReport struct {
	Method  string            `json:"method"`
	Goes    string            `json:"goes"`
	Request map[string]string `json:"request,omitempty"` // :: path of a translated field → its kind
	Reply   map[string]string `json:"reply,omitempty"`
}

// Examine compiles the configuration and asks each backend what it is. It builds the same proxy as serve does, but opens no
// socket and runs nothing, so it can be used beside a criproxy that serves.
func Examine(ctx context.Context, c *config.Config) (*Examination, error) {
	c.StateDir = "" // do not touch the files of a running criproxy
	if len(c.Backends) == 0 {
		return examineProfile(c)
	}
	p, err := New(c, Options{})
	if err != nil {
		return nil, err
	}
	defer p.Close()
	r := &Examination{Listen: c.Listen, Backends: make([]backendReport, len(c.Backends)), Warnings: c.Warnings()}
	ctx, cancel := context.WithTimeout(ctx, AskTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for i, b := range c.Backends {
		wg.Go(func() {
			r.Backends[i] = p.backends()[i].examine(ctx, b)
			p.backends()[i].askDriver(ctx)
		})
	}
	wg.Wait()
	for _, b := range r.Backends {
		if b.Error != "" {
			r.Errors = append(r.Errors, fmt.Sprintf("backend %s %s", b.Name, b.Error))
		}
	}
	for _, b := range p.backends()[1:] {
		if text := driverMismatch(p.backends()[0], b); text != "" {
			r.Errors = append(r.Errors, text)
		}
	}
	// What follows is about the configuration alone, whether or not the backends have answered.
	r.Methods = methodReports(p.director)
	if text := crioPath(c); text != "" {
		r.Warnings = append(r.Warnings, text)
	}
	r.Warnings = append(r.Warnings, p.director.Assumptions()...)
	if text := p.backends()[0].silenceNote(); text != "" && !single(c) {
		r.Notes = append(r.Notes, text)
	}
	if c.Profile == "" { // only CRI is for kubelet
		// A backend that has not answered may have the method or not: nothing is said of it.
		var lack []string
		answered := *c
		answered.Backends = nil
		for i, b := range r.Backends {
			if b.lacksMetrics {
				lack = append(lack, b.Name)
			}
			if i == 0 || b.Error == "" {
				answered.Backends = append(answered.Backends, c.Backends[i])
			}
		}
		r.Notes = append(r.Notes, figureNotes(&answered, lack)...)
	}
	return r, nil
}

// silenceNote says how criproxy notices that a backend answers nothing, or answers again, if the profile names no method to
// ask.
func (b *stack) silenceNote() string {
	switch {
	case !b.cached:
		return noKnown
	case b.backend.Unasked():
		return noProbe
	}
	return ""
}

const noKnown = "the profile has nothing under known: criproxy caches no answers, and calls to a backend that accepts connections " +
	"and answers nothing wait for their deadlines (docs/profile.md)"

const noProbe = "the profile has neither a probe nor a list that is a gate: a backend that was gone is up as soon as it answers " +
	"grpc.health.v1.Health/Check, even with Unimplemented, which does not show that its own methods work; " +
	"name a quick method without arguments as probe: Service/Method (docs/profile.md)"

// examineProfile compiles the profile for two backends without connecting to them, for a configuration that names none.
func examineProfile(c *config.Config) (*Examination, error) {
	a, err := Read(c)
	if err != nil {
		return nil, err
	}
	a.Backends = []director.Backend{{}, {Name: "NAME"}}
	dir, err := director.New(a.Config)
	if err != nil {
		return nil, err
	}
	return &Examination{Methods: methodReports(dir), Warnings: dir.Assumptions()}, nil
}

// methodReports returns a report of each method that the director knows.
func methodReports(d *director.Director) []methodReport {
	var all []methodReport
	for _, route := range d.Routes() {
		all = append(all, methodReport{Method: route.Method, Goes: route.Goes, Request: kinds(route.Request), Reply: kinds(route.Reply)})
	}
	return all
}

// kinds returns the kinds of fields by their paths.
func kinds(fields []director.Translated) map[string]string {
	m := map[string]string{}
	for _, f := range fields {
		m[f.Path] = f.Kind
	}
	return m
}

// examine asks a container runtime for its name and version, and another server for its services.
// Most servers do not offer reflection, but their refusal shows that they answer.
func (b *stack) examine(ctx context.Context, cfg config.Backend) backendReport {
	r := backendReport{Name: nameOf(cfg), Address: cfg.Address}
	began, asked := time.Now(), b.alive
	versions, err := b.conn.Versions(ctx)
	if err == nil {
		r.Versions = versions
	}
	switch {
	case err != nil:
	case b.cri:
		var v runtimeapi.VersionResponse
		err = b.conn.Invoke(ctx, runtimeapi.RuntimeService_Version_FullMethodName, &runtimeapi.VersionRequest{}, &v)
		r.Runtime = runtimeName(&v)
		r.lacksMetrics = err == nil && !listsMetrics(ctx, b.conn)
	default:
		asked = reflection.ServerReflection_ServerReflectionInfo_FullMethodName
		_, err = codec.Reflect(ctx, b.conn)
	}
	if !b.cri {
		r.Runtime = "is there"
	}
	switch {
	case status.Code(err) == codes.DeadlineExceeded:
		r.Error = unanswered(ctx, time.Since(began).Round(100*time.Millisecond), asked, err)
	case err != nil && (b.cri || status.Code(err) != codes.Unimplemented):
		r.Error = strings.TrimPrefix(status.Convert(err).Message(), fmt.Sprintf("criproxy: backend %s ", b))
	}
	return r
}
