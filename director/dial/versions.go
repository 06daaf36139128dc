package dial

import (
	"context"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/profile"
	"github.com/criproxy/criproxy/internal/transport"
)

// A spoken says which versions of the API a backend speaks. It is immutable, and holds only for the connection on which the backend
// was asked: after a newer connection the backend may have been restarted as another version.
type spoken struct {
	dials    uint64 // Conn.dials before the backend was asked
	versions []int  // newest first
}

// Versions returns the packages, one for each version of the API, that the backend has, newest
// first. It asks the backend if the Conn does not know yet. The slice is empty for an API of which
// the profile names only one version.
func (c *Conn) Versions(ctx context.Context) ([]string, error) {
	if c.versions == nil {
		return nil, nil
	}
	s, err := c.ask(ctx)
	if err != nil {
		return nil, err
	}
	var packages []string
	for _, v := range s.versions {
		packages = append(packages, c.versions.Packages[v])
	}
	return packages, nil
}

// current returns which versions the backend has; nil if it has not been asked on this
// connection.
func (c *Conn) current() *spoken {
	if s := c.spoken.Load(); s != nil && s.dials == c.dials.Load() {
		return s
	}
	return nil
}

// ask returns which versions the backend has. One call at a time asks it. A call that has come through another proxy
// asks at once: if the backend leads back here, the call that asks now waits for this one.
func (c *Conn) ask(ctx context.Context) (*spoken, error) {
	if s := c.current(); s != nil {
		return s, nil
	}
	if len(metadata.ValueFromOutgoingContext(ctx, transport.ViaField)) == 0 {
		select {
		case c.asking <- struct{}{}:
			defer func() { <-c.asking }()
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
	if s := c.current(); s != nil { // another call was faster
		return s, nil
	}
	c.settle(ctx)
	s := &spoken{dials: c.dials.Load()}
	for v, method := range c.versions.Probes {
		call := &codec.Call{Method: method, Request: &codec.Frame{}}
		switch err := c.cc.Call(ctx, call); {
		case err == nil:
			s.versions = append(s.versions, v)
		case status.Code(err) == codes.Unimplemented:
		case len(s.versions) == 0: // the backend may have this version, which would be its newest
			return nil, c.explain(wording{}, err, call.Header, call.Trailer)
		}
	}
	if len(s.versions) == 0 {
		return nil, status.Errorf(codes.Unimplemented, "criproxy: backend %s serves none of %s: its service is disabled or has not loaded; see its log", c, strings.Join(c.versions.Packages, ", "))
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

// A wording is a method in the newest version that the backend has. It is for one call.
type wording struct {
	name   string               // of the method in that version
	to     *profile.Translation // to that version; nil: it is the newest
	spoken *spoken              // nil: the method is the same in all versions
}

// wording returns the wording of a method for the backend.
func (c *Conn) wording(ctx context.Context, name string) (wording, error) {
	if c.versions == nil {
		return wording{name: name}, nil
	}
	each := c.versions.ToEach(name)
	if each == nil {
		return wording{name: name}, nil
	}
	s, err := c.ask(ctx)
	if err != nil {
		return wording{}, err
	}
	if v := s.versions[0]; v > 0 {
		return wording{each[v].Method, each[v], s}, nil
	}
	return wording{name: name, spoken: s}, nil
}

// unreadable returns the status for a message that cannot be converted.
func unreadable(method string, err error) error {
	return status.Errorf(codes.Internal, "criproxy: %s: %v", profile.ShortName(method), err)
}
