package plugins

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/rewrite"
)

// around is a connection that asks the plugins, and passes calls on to a director.
type around struct {
	codec.Caller
	plugins *Plugins
}

// Call asks the plugins about the call, makes it, and notifies them how it ended.
func (c *around) Call(ctx context.Context, call *codec.Call) error {
	of := c.plugins.program.calls[call.Method]
	if of == nil || len(c.plugins.table.Load().plugins) == 0 {
		return c.Caller.Call(ctx, call)
	}
	v := &visit{Plugins: c.plugins, call: of, src: call.Request.Bytes()}
	defer v.hold()()
	request, err := v.ask(ctx, call.Request)
	if err != nil {
		return err
	}
	if len(v.changedBy) > 0 {
		ctx = context.WithValue(ctx, changedKey{}, v.changedBy)
	}
	if err = call.OnAs(ctx, c.Caller, call.Method, request); err == nil {
		v.remember(call.Reply.Bytes())
	}
	v.callAfter(ctx, err)
	return err
}

// visit is one call with the plugins at its points.
type visit struct {
	*Plugins
	call          *call
	before, after []*plugin
	src           []byte // the request, as the client sent it

	id, parent string               // of the object; id is empty before the object exists
	now        protoreflect.Message // the message for the next plugin; nil if there is no fact of the object
	asked      protoreflect.Message // the message for the first plugin; nil if none was asked
	leftOut    []string
	changes    []change
	changedBy  []Asked // by the plugins that made changes
}

// hold sets before and after. Until release is called their connections stay open, also if a file is removed meanwhile.
func (v *visit) hold() (release func()) {
	for {
		t := v.table.Load()
		v.before, v.after = t.at[v.call.before], t.at[v.call.after]
		all := slices.Concat(v.before, v.after)
		closed := slices.IndexFunc(all, func(p *plugin) bool { return !p.conn.use() })
		if closed >= 0 {
			all = all[:closed]
		}
		release = func() {
			for _, p := range all {
				p.conn.release()
			}
		}
		if closed < 0 || v.table.Load() == t { // otherwise a file has just been removed
			return release
		}
		release()
	}
}

type changedKey struct{}

// ChangedBy returns the plugins that changed a call, in the order in which they were asked. ctx is
// the context of the call in a connection below [Plugins.Around].
func ChangedBy(ctx context.Context) []Asked {
	all, _ := ctx.Value(changedKey{}).([]Asked)
	return all
}

// ask finds the object of the call, asks the plugins, and returns the request with their changes.
// Its error refuses the call.
func (v *visit) ask(ctx context.Context, request *codec.Frame) (*codec.Frame, error) {
	if err := v.find(ctx); err != nil {
		if len(v.before)+len(v.after) == 0 {
			return request, nil // only the facts needed the object
		}
		return request, v.withoutObject(ctx, err)
	}
	if v.now == nil || v.skipped() {
		v.before, v.after = nil, nil
		return request, nil
	}
	if len(v.before) == 0 {
		return request, nil
	}
	v.asked = cloneOf(v.now)
	owner := map[string]string{} // :: field → the plugin that changed it
	for _, p := range v.before {
		changes, err := v.askOne(ctx, p)
		if err != nil {
			return request, err
		}
		for _, c := range changes {
			field := c.field()
			if first := owner[field]; first != "" {
				v.conflicts.Add(1)
				v.Plugins.report(ctx, Conflict{Point: v.call.before.name, Field: field, First: first, Second: p.name})
			}
			owner[field] = p.name
		}
		v.changes = append(v.changes, changes...)
	}
	return v.patched(request)
}

// find sets now if a plugin or the facts need it.
func (v *visit) find(ctx context.Context) error {
	needed := len(v.before)+len(v.after) > 0
	c := v.call
	var from *fact // of the object, or of the parent of a new object
	var err error
	if c.makes {
		m := c.object.typ.New()
		if c.object.parent != nil {
			if v.parent, err = textAt(c.parent, v.src); err != nil {
				return err
			}
			if from, err = v.fact(ctx, c.object.parent, v.parent, needed); err != nil || from == nil {
				return err
			}
			v.parent = from.id
			c.object.inherit(m, from.about, nil)
		}
		for _, f := range c.fill { // the request decides about these fields, even if it lacks them
			m.Clear(f.to.Fields()[0])
		}
		if v.leftOut, err = c.fill.run(m, v.src); err != nil {
			return err
		}
		v.now = m
		return nil
	}
	if v.id, err = textAt(c.id, v.src); err != nil || !needed {
		return err
	}
	if from, err = v.fact(ctx, c.object, v.id, true); err != nil {
		return err
	}
	v.id, v.parent = from.id, from.parent
	m := from.message()
	if len(c.fill) > 0 {
		m = from.askedMessage()
	}
	if v.leftOut, err = c.fill.run(m, v.src); err != nil {
		return err
	}
	v.now = m
	return nil
}

// fact returns the fact of an object. If there is none, it looks the object up if
// needed is set, and otherwise returns nil.
func (v *visit) fact(ctx context.Context, o *object, id string, needed bool) (*fact, error) {
	if f := v.facts.get(o.kind, id); f != nil || !needed {
		return f, nil
	}
	return v.lookup(ctx, o, id)
}

// withoutObject decides about a call whose object cannot be found, because of err: the call goes on
// without the plugins, or is refused if one of them has Fail.
func (v *visit) withoutObject(ctx context.Context, err error) error {
	e := Unknown{Method: v.call.method.Name, ID: v.id + v.parent, Err: err}
	var by *plugin
	for _, p := range v.before {
		if p.file.Fail {
			e.Refused, by = true, p
			break
		}
	}
	v.before, v.after = nil, nil
	v.Plugins.report(ctx, e)
	if by == nil {
		return nil
	}
	code := codes.Unavailable
	if status.Code(err) == codes.NotFound {
		code = codes.NotFound // the runtime would answer the same
	}
	return status.Errorf(code, "criproxy: %s: plugin %s must be asked, but criproxy cannot find the pod or container of the call: %s",
		v.call.name, by.name, status.Convert(err).Message())
}

// skipped reports whether the object has the label of Config.Skip.
func (v *visit) skipped() bool {
	return v.cfg.Skip[0] != "" && v.call.object.labels.strings(v.now)[v.cfg.Skip[0]] == v.cfg.Skip[1]
}

// patched returns the request with the changes of the plugins. The request that it gets stays with
// the caller.
func (v *visit) patched(request *codec.Frame) (*codec.Frame, error) {
	var p rewrite.Patch
	for _, c := range v.changes {
		if err := c.patch(&p); err != nil {
			return request, v.impossible(err)
		}
	}
	if p.Empty() {
		return request, nil
	}
	out, err := p.Apply(nil, v.src)
	if err != nil {
		return request, v.impossible(err)
	}
	if len(out) > v.cfg.MaxMessage {
		return request, status.Errorf(codes.ResourceExhausted, "criproxy: %s: plugins made the request larger than %d bytes", v.call.name, v.cfg.MaxMessage)
	}
	return codec.NewFrame(out), nil
}

func (v *visit) impossible(err error) error {
	return status.Errorf(codes.Internal, "criproxy: %s: making the changes of the plugins in the request: %v", v.call.name, err)
}

// remember updates the facts after a call that succeeded.
func (v *visit) remember(reply []byte) {
	c := v.call
	var err error
	switch {
	case c.makes && v.now != nil:
		err = v.rememberMade(reply)
	case c.ends:
		v.facts.remove(c.object, v.id)
	case !c.makes && (len(c.fill) > 0 || len(v.changes) > 0):
		asked := func(m protoreflect.Message) error {
			_, err := c.fill.run(m, v.src)
			return err
		}
		err = v.facts.update(c.object.kind, v.id, asked, func(m protoreflect.Message) {
			for _, one := range v.changes {
				one.apply(m)
			}
		})
	}
	if err != nil {
		v.Plugins.report(context.Background(), Trouble{What: fmt.Sprintf("%s: the object of the call cannot be remembered for plugins", c.name), Err: err})
	}
}

func (v *visit) rememberMade(reply []byte) error {
	id, err := textAt(v.call.id, reply)
	if err != nil {
		return err
	}
	v.id = id
	f := v.newFact(v.call.object, id, v.parent, v.now)
	if v.asked != nil {
		f.keepAsked(v.asked)
	}
	v.facts.put(f)
	return nil
}

// textAt returns the string to which a path leads. It fails if the string is empty.
func textAt(path *rewrite.Path, src []byte) (string, error) {
	text, _, err := path.Lookup(src)
	switch {
	case err != nil:
		return "", err
	case len(text) == 0:
		return "", errors.New(path.String() + " is empty")
	}
	return string(text), nil
}
