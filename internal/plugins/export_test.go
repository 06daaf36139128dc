package plugins

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Misfits returns the fields of the spec whose types do not fit: those that a request cannot give to plugins, those that an
// answer cannot change, and those that a request cannot take.
func Misfits(cfg Config) (all []string, err error) {
	p, err := compile(cfg.Spec, cfg.Schema, cfg.Hooks)
	if err != nil {
		return nil, err
	}
	fit := func(where string, ok bool) {
		if !ok {
			all = append(all, where)
		}
	}
	for kind, o := range p.objects {
		fit(kind+" id", o.id == nil || isText(o.id.leaf()))
		for _, f := range []fieldPath{o.uid, o.namespace, o.name} {
			fit(kind+" "+f.String(), f != nil && isText(f.leaf()))
		}
		fit(kind+" labels", o.labels != nil && o.labels.leaf().IsMap())
		fit(kind+" asked", o.asked != nil && o.asked.Message() != nil && !o.asked.IsList() && !o.asked.IsMap())
		for _, f := range o.inherits {
			fit(kind+" inherits "+string(f[0].Name()), sameType(f[0], f[1]) && !f[0].IsList())
		}
		fit(kind+" parent", o.parent == nil || o.parent.parent == nil)
	}
	for name, c := range p.calls {
		for _, f := range c.fill {
			fit(fmt.Sprintf("%s fills %s", name, f.to), becomes(f.from.Leaf(), f.to.Leaf()))
		}
		for _, l := range c.leaves {
			at := fmt.Sprintf("%s changes %s", name, l.answer)
			fd := l.answer.leaf()
			fit(at, sameType(fd, l.state.leaf()))
			fit(at+" by its rule", map[string]bool{
				"positive": isNumber(fd), "nonzero": isNumber(fd), "nonempty": isText(fd), "any": isText(fd),
				"merge": fd.IsMap(), "replace": fd.IsMap() || fd.IsList() && fd.Message() != nil,
			}[l.rule.Kind])
			fit(at+" in the request", l.to == nil || becomes(l.to.Leaf(), l.state.leaf()))
		}
	}
	return all, nil
}

func isText(fd protoreflect.FieldDescriptor) bool {
	return fd.Kind() == protoreflect.StringKind && !fd.IsList()
}

func isNumber(fd protoreflect.FieldDescriptor) bool {
	return fd.Kind() == protoreflect.Int64Kind && !fd.IsList()
}

func sameType(a, b protoreflect.FieldDescriptor) bool {
	return a.Kind() == b.Kind() && a.Cardinality() == b.Cardinality() && a.IsMap() == b.IsMap() && (a.IsMap() || a.Message() == b.Message())
}

// becomes reports whether the bytes of from can stand in to: each is text, or a message whose fields have the same numbers
// and types. The list of variables that CRI has becomes a map.
func becomes(from, to protoreflect.FieldDescriptor) bool {
	switch {
	case to.Message() == nil:
		return from.Kind() == to.Kind() || from.Kind() == protoreflect.BytesKind && to.Kind() == protoreflect.StringKind
	case from.Message() == nil || from.Cardinality() != to.Cardinality():
		return false
	}
	for i := range to.Message().Fields().Len() {
		fd := to.Message().Fields().Get(i)
		if other := from.Message().Fields().ByNumber(fd.Number()); other != nil && (other.Name() != fd.Name() || !becomes(other, fd)) {
			return false
		}
	}
	return true
}

// Learn looks up all objects, as Run does from time to time.
func (p *Plugins) Learn(ctx context.Context) error { return p.learnAll(ctx) }

// RunsIn makes the process that serves a plugin appear to be in another cgroup.
func (p *Plugins) RunsIn(plugin, cgroup string) {
	for _, one := range p.table.Load().plugins {
		if one.name == plugin {
			one.conn.cgroup.Store(&cgroup)
		}
	}
}

// CgroupOf returns the cgroup of the process at the other end.
func CgroupOf(nc net.Conn) string { return cgroupOf(nc) }

// AnswerBy sends the calls to a registered plugin to another connection.
func (p *Plugins) AnswerBy(plugin string, calls grpc.ClientConnInterface) {
	for _, one := range p.table.Load().plugins {
		if one.name == plugin {
			one.conn.calls = calls
		}
	}
}

// HangsAfter makes a registered plugin down that lets calls wait for d, and answers none.
func (p *Plugins) HangsAfter(plugin string, d time.Duration) {
	for _, one := range p.table.Load().plugins {
		if one.name == plugin {
			one.conn.mu.Lock()
			one.conn.hangs = d
			one.conn.mu.Unlock()
		}
	}
}
