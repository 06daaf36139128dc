package director

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/settings/profile"
	"github.com/criproxy/criproxy/rewrite"
)

// versions knows the versions of an API, each of which is a package: the name of a method in each,
// and how to convert messages between them. It is immutable. Nil is for an API with one version.
type versions struct {
	packages []string
	methods  map[string]*versioned // :: full method of the newest version
	older    map[string]older      // :: full method of any older version
	probe    []string              // the probe's full method, by version
}

// versioned is one method in all versions.
type versioned struct {
	names   []string // by version
	request [][]step // by version: conversions of its request
	reply   [][]step // by version: conversions of its reply
}

// step is one conversion of one message.
type step struct {
	plan     *rewrite.Plan
	up, down rewrite.Edit
}

type older struct {
	method  *versioned
	version int
}

func compileVersions(p *Profile, methods []*codec.Method, code map[string]Conversion) (*versions, error) {
	v := &versions{methods: map[string]*versioned{}, older: map[string]older{}}
	newest := p.Versions[0].Package
	api := profile.MessagesOf(methods)
	var errs []error
	for i, version := range p.Versions {
		v.packages = append(v.packages, version.Package)
		v.probe = append(v.probe, "/"+version.Package+"."+p.Probe)
		steps, err := conversions(version, api, code)
		if err != nil {
			errs = append(errs, fmt.Errorf("versions[%d]: %w", i, err))
			continue
		}
		for _, m := range methods {
			vm := v.methods[m.Name]
			if vm == nil {
				vm = &versioned{}
				v.methods[m.Name] = vm
			}
			name := "/" + version.Package + strings.TrimPrefix(m.Name, "/"+newest)
			vm.names = append(vm.names, name)
			vm.request = append(vm.request, steps(m.Input))
			vm.reply = append(vm.reply, steps(m.Output))
			if i > 0 {
				v.older[name] = older{vm, i}
			}
		}
	}
	if len(p.Versions) > 1 && v.methods[v.probe[0]] == nil {
		errs = append(errs, fmt.Errorf("probe: there is no method %s", v.probe[0]))
	}
	return v, errors.Join(errs...)
}

// conversions returns a function that returns the conversions between one version
// of a message and the newest.
func conversions(version profile.Version, api *rewrite.Messages, code map[string]Conversion) (func(protoreflect.MessageDescriptor) []step, error) {
	type compiled struct {
		Conversion
		classes *rewrite.Classes
	}
	var all []compiled
	for _, name := range version.Convert {
		c, ok := code[name]
		if !ok {
			return nil, fmt.Errorf("convert: there is no code called %q", name)
		}
		var rules []rewrite.Rule
		for i, field := range c.Fields {
			rules = append(rules, rewrite.Rule{Field: field, Class: rewrite.Class(i + 1)})
		}
		classes, err := api.Classify(rules)
		if err != nil {
			return nil, fmt.Errorf("convert: %s: %w", name, err)
		}
		all = append(all, compiled{c, classes})
	}
	return func(md protoreflect.MessageDescriptor) []step {
		var steps []step
		for _, c := range all {
			if plan := c.classes.Plan(md); plan != nil {
				steps = append(steps, step{plan, c.Up, c.Down})
			}
		}
		return steps
	}, nil
}

// newest returns the name of a method in the newest version of the API, or name itself if no older
// version has such a method.
func (v *versions) newest(name string) string {
	if v != nil {
		if o, ok := v.older[name]; ok {
			return o.method.names[0]
		}
	}
	return name
}

// up converts a message of an older version to the newest. It takes ownership of f.
func up(steps []step, f *codec.Frame) (*codec.Frame, error) {
	for _, s := range steps {
		if s.up == nil {
			continue
		}
		converted, err := apply(s.plan, f, s.up)
		f.Free()
		if err != nil {
			return nil, fmt.Errorf("converting to the newest version: %w", err)
		}
		f = converted
	}
	return f, nil
}

// down converts a message of the newest version to an older one. f stays with the caller.
func down(steps []step, f *codec.Frame) (*codec.Frame, error) {
	for i := len(steps) - 1; i >= 0; i-- {
		if steps[i].down == nil {
			continue
		}
		converted, err := apply(steps[i].plan, f, steps[i].down)
		if err != nil {
			return nil, fmt.Errorf("converting to an older version: %w", err)
		}
		f = converted
	}
	return f, nil
}

// frontVersions is a connection that takes the methods of every version of the API and passes
// them on in the newest.
type frontVersions struct {
	next     grpc.ClientConnInterface
	director *Director
}

// older returns the method of an older version with the full name name.
func (c *frontVersions) older(name string) (older, bool) {
	v := c.director.table.Load().versions
	if v == nil {
		return older{}, false
	}
	o, ok := v.older[name]
	return o, ok
}

func (c *frontVersions) Invoke(ctx context.Context, name string, args, reply any, opts ...grpc.CallOption) error {
	o, ok := c.older(name)
	if !ok {
		return c.next.Invoke(ctx, name, args, reply, opts...)
	}
	request, err := codec.FrameOf(args)
	if err != nil {
		return err
	}
	if request, err = up(o.method.request[o.version], request.Ref()); err != nil {
		return internal(name, err)
	}
	defer request.Free()
	answer := &codec.Frame{}
	if err := c.next.Invoke(ctx, o.method.names[0], request, answer, opts...); err != nil {
		return err
	}
	if answer, err = down(o.method.reply[o.version], answer); err != nil {
		return internal(name, err)
	}
	return codec.Decode(reply, answer)
}

func (c *frontVersions) NewStream(ctx context.Context, desc *grpc.StreamDesc, name string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	o, ok := c.older(name)
	if !ok {
		return c.next.NewStream(ctx, desc, name, opts...)
	}
	cs, err := c.next.NewStream(ctx, desc, o.method.names[0], opts...)
	if err != nil {
		return nil, err
	}
	return &convertedStream{
		ClientStream: cs,
		name:         name,
		out:          func(f *codec.Frame) (*codec.Frame, error) { return up(o.method.request[o.version], f.Ref()) },
		in:           func(f *codec.Frame) (*codec.Frame, error) { return down(o.method.reply[o.version], f) },
	}, nil
}

// convertedStream converts each message of a stream.
type convertedStream struct {
	grpc.ClientStream
	name    string
	out, in func(*codec.Frame) (*codec.Frame, error)
}

func (s *convertedStream) SendMsg(m any) error {
	f, err := codec.FrameOf(m)
	if err != nil {
		return err
	}
	if f, err = s.out(f); err != nil {
		return internal(s.name, err)
	}
	return s.ClientStream.SendMsg(f)
}

func (s *convertedStream) RecvMsg(m any) error {
	f := &codec.Frame{}
	if err := s.ClientStream.RecvMsg(f); err != nil {
		return err
	}
	f, err := s.in(f)
	if err != nil {
		return internal(s.name, err)
	}
	return codec.Decode(m, f)
}
