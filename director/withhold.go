package director

import (
	"bytes"
	"fmt"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/rewrite"
)

// A withhold removes a field from a request if the client wrote the field for a name that differs at
// the backend. So the credentials that kubelet sends with an image go to no registry of another
// name. It is immutable.
type withhold struct {
	plan   *rewrite.Plan // finds the field
	path   *rewrite.Path // leads to the name
	naming *naming
	notify func(b Backend, method, name string) // or nil
}

// compileWithhold compiles the rules of a method: path of a field → path of the name for which the client sends it.
func (t *table) compileWithhold(cfg Config, fields map[string]string, desc *codec.Method, classes *rewrite.Classes) ([]withhold, error) {
	var all []withhold
	for _, field := range sortedKeys(fields) {
		rule := rewrite.Rule{Field: string(desc.Input.Name()) + "." + field, Class: 1}
		found, err := rewrite.Classify([]protoreflect.MessageDescriptor{desc.Input}, []rewrite.Rule{rule})
		if err != nil {
			return nil, err
		}
		path, naming, err := t.namePath(desc.Input, fields[field], classes)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", field, err)
		}
		all = append(all, withhold{found.Plan(desc.Input), path, naming, cfg.Withheld})
	}
	return all, nil
}

// namePath returns a path to a name in a message, and the naming of that name.
func (t *table) namePath(md protoreflect.MessageDescriptor, text string, classes *rewrite.Classes) (*rewrite.Path, *naming, error) {
	path, err := rewrite.ParsePath(md, text)
	if err != nil {
		return nil, nil, err
	}
	c := t.classes[classes.Of(path.Leaf())]
	if c == nil || c.naming == nil {
		return nil, nil, fmt.Errorf("%s holds no name of a backend's item; want a field that the profile lists under \"fields\"", path)
	}
	return path, c.naming, nil
}

// from returns the request without the field, if the name differs at the backend. The request that
// it gets stays with the caller.
func (w withhold) from(b int, backend Backend, method string, request *codec.Frame) (*codec.Frame, error) {
	if backend.Trusted || !w.naming.changes[b] {
		return request, nil
	}
	name, ok, err := w.path.Lookup(request.Bytes())
	if err != nil || !ok || bytes.Equal(w.naming.toBack(nil, name, b), name) {
		return request, err
	}
	if found, err := w.plan.Find(nil, request.Bytes()); err != nil || len(found) == 0 {
		return request, err
	}
	if w.notify != nil {
		w.notify(backend, method, string(name))
	}
	return apply(w.plan, request, func(dst []byte, _ rewrite.Class, _ []byte) ([]byte, error) { return dst, rewrite.ErrDrop })
}
