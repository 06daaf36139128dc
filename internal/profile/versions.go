package profile

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/base/buffers"
	"github.com/criproxy/criproxy/rewrite"
)

// Versions knows the versions of an API, each of which is a package: the name of a method in each,
// and how to convert messages between them. It is immutable. Nil is for an API with one version.
type Versions struct {
	Packages []string // newest first
	Probes   []string // the probe's full method, in each

	toNewest map[string]*Translation   // :: full method of any older version
	toEach   map[string][]*Translation // :: full method of the newest version → by version
}

// A Translation says how a call of a method in one version is made in another one. One of the two is
// the newest.
type Translation struct {
	Method         string // full name in the other version
	up             bool   // the other version is the newest
	request, reply []step // conversions of the messages, in the order for up
}

// step is one conversion of one message.
type step struct {
	plan     *rewrite.Plan
	up, down rewrite.Edit
}

// A Conversion is the code for a name under versions.convert: director.Conversion.
type Conversion struct {
	Fields   []string
	Up, Down rewrite.Edit
}

// VersionsOf returns the versions that p has, for its methods. code returns the conversion with a
// name, and whether there is one. Everything that is wrong with p's versions is in the error.
func VersionsOf(p *Profile, methods []*codec.Method, code func(name string) (Conversion, bool)) (*Versions, error) {
	v := &Versions{toNewest: map[string]*Translation{}, toEach: map[string][]*Translation{}}
	newest := p.Versions[0].Package
	api := MessagesOf(methods)
	var errs []error
	for i, version := range p.Versions {
		v.Packages = append(v.Packages, version.Package)
		v.Probes = append(v.Probes, "/"+version.Package+"."+p.Probe)
		steps, err := conversions(version, api, code)
		if err != nil {
			errs = append(errs, fmt.Errorf("versions[%d]: %w", i, err))
			continue
		}
		for _, m := range methods {
			name := "/" + version.Package + strings.TrimPrefix(m.Name, "/"+newest)
			request, reply := steps(m.Input), steps(m.Output)
			v.toEach[m.Name] = append(v.toEach[m.Name], &Translation{name, false, request, reply})
			if i > 0 {
				v.toNewest[name] = &Translation{m.Name, true, request, reply}
			}
		}
	}
	if len(p.Versions) > 1 && v.toEach[v.Probes[0]] == nil {
		errs = append(errs, fmt.Errorf("probe: there is no method %s", v.Probes[0]))
	}
	return v, errors.Join(errs...)
}

// conversions returns a function that returns the conversions between one version
// of a message and the newest.
func conversions(version Version, api *rewrite.Messages, code func(string) (Conversion, bool)) (func(protoreflect.MessageDescriptor) []step, error) {
	type compiled struct {
		Conversion
		classes *rewrite.Classes
	}
	var all []compiled
	for _, name := range version.Convert {
		c, ok := code(name)
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

// ToNewest returns how to make a call of a method of an older version in the newest. It is nil if no
// older version has a method with that full name.
func (v *Versions) ToNewest(method string) *Translation {
	if v == nil {
		return nil
	}
	return v.toNewest[method]
}

// ToEach returns how to make a call of a method of the newest version in each version. It is nil if
// the API has no method with that full name.
func (v *Versions) ToEach(method string) []*Translation { return v.toEach[method] }

// Request converts a request to the other version. It takes ownership of f.
func (t *Translation) Request(f *codec.Frame) (*codec.Frame, error) {
	return convert(t.request, f, t.up)
}

// Reply converts a reply of the other version. It takes ownership of f.
func (t *Translation) Reply(f *codec.Frame) (*codec.Frame, error) { return convert(t.reply, f, !t.up) }

// convert converts a message to the newest version, or from it to an older one.
func convert(steps []step, f *codec.Frame, up bool) (*codec.Frame, error) {
	for i, s := range steps {
		edit, to := s.up, "the newest"
		if !up { // the way back
			s = steps[len(steps)-1-i]
			edit, to = s.down, "an older"
		}
		if edit == nil {
			continue
		}
		src := f.Bytes()
		out, err := buffers.Fill(len(src)+len(src)/8+64, func(dst []byte) ([]byte, error) { return s.plan.Apply(dst, src, edit) })
		f.Free()
		if err != nil {
			return nil, fmt.Errorf("converting to %s version: %w", to, err)
		}
		f = codec.FrameOfBuffers(out)
	}
	return f, nil
}
