package director

import (
	"context"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
)

// spoken says which versions of the API a backend speaks. It holds only for the connection on which
// the backend was asked: behind a newer connection the backend may have been restarted as another
// version.
type spoken struct {
	dials    uint64 // Conn.dials before the backend was asked
	versions []int  // newest first
}

// Versions returns the packages, one for each version of the API, that the backend speaks, newest
// first. It asks the backend if the Conn does not know yet. The slice is empty for an API of which
// the profile names only one version.
func (c *Conn) Versions(ctx context.Context) ([]string, error) {
	if c.versions == nil {
		return nil, nil
	}
	s, err := c.speaks(ctx)
	if err != nil {
		return nil, err
	}
	var packages []string
	for _, v := range s.versions {
		packages = append(packages, c.versions.packages[v])
	}
	return packages, nil
}

// current returns which versions the backend speaks; nil if it has not been asked on this
// connection.
func (c *Conn) current() *spoken {
	if s := c.spoken.Load(); s != nil && s.dials == c.dials.Load() {
		return s
	}
	return nil
}

// speaks returns which versions the backend speaks. One call at a time asks it.
func (c *Conn) speaks(ctx context.Context) (*spoken, error) {
	if s := c.current(); s != nil {
		return s, nil
	}
	select {
	case c.probing <- struct{}{}:
		defer func() { <-c.probing }()
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	if s := c.current(); s != nil { // another call was faster
		return s, nil
	}
	c.settle(ctx)
	s := &spoken{dials: c.dials.Load()}
	for v, method := range c.versions.probe {
		opts := traced(nil)
		err := c.cc.Invoke(ctx, method, &codec.Frame{}, &codec.Frame{}, opts...)
		switch {
		case err == nil:
			s.versions = append(s.versions, v)
		case status.Code(err) == codes.Unimplemented:
		case len(s.versions) == 0: // the backend may speak this version, which would be its newest
			return nil, c.explain(wording{}, err, opts)
		}
	}
	if len(s.versions) == 0 {
		return nil, status.Errorf(codes.Unimplemented, "criproxy: backend %s speaks none of %s: its service is disabled or has not loaded; see its log", c, strings.Join(c.versions.packages, ", "))
	}
	c.spoken.Store(s)
	return s, nil
}

// settle waits while the connection is being made.
func (c *Conn) settle(ctx context.Context) {
	for {
		state := c.cc.GetState()
		if state == connectivity.Idle {
			c.cc.Connect()
		}
		if state != connectivity.Idle && state != connectivity.Connecting || !c.cc.WaitForStateChange(ctx, state) {
			return
		}
	}
}

// A wording is a method in the version that the backend speaks.
type wording struct {
	name    string     // of the method in that version
	method  *versioned // has the conversions of its messages; nil: there are none
	version int
	spoken  *spoken // nil: the method is the same in all versions
}

// wording returns the wording of a method for the backend.
func (c *Conn) wording(ctx context.Context, name string) (wording, error) {
	if c.versions == nil {
		return wording{name: name}, nil
	}
	m := c.versions.methods[name]
	if m == nil {
		return wording{name: name}, nil
	}
	s, err := c.speaks(ctx)
	if err != nil {
		return wording{}, err
	}
	if v := s.versions[0]; v > 0 {
		return wording{m.names[v], m, v, s}, nil
	}
	return wording{name: name, spoken: s}, nil
}

// down converts a request for the backend. The frame that it gets stays with the caller.
func (w wording) down(f *codec.Frame) (*codec.Frame, error) {
	f, err := down(w.method.request[w.version], f)
	if err != nil {
		return nil, internal(w.name, err)
	}
	return f, nil
}

// up converts a reply of the backend. It frees a frame that it replaces.
func (w wording) up(f *codec.Frame) (*codec.Frame, error) {
	f, err := up(w.method.reply[w.version], f)
	if err != nil {
		return nil, internal(w.name, err)
	}
	return f, nil
}
