package director

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/rewrite"
)

// table is what a profile and a list of backends come to: the fate of each
// method. It is immutable; calls under way finish on the table they began with.
type table struct {
	backends   []Backend
	methods    map[string]*method // :: full method of the newest version
	ordered    []*method          // as in the schema
	classes    []*class           // :: rewrite.Class → what it is; 0 is none
	versions   *versions
	index      map[string]int // :: backend's name → its place
	maxMessage int

	backEdits  []rewrite.Edit // by backend: what turns front names into its own
	frontEdits []rewrite.Edit // and back
}

// class is what the content of a field means: a kind of name, or work for an edit.
type class struct {
	name   string
	naming *naming // nil for an edit
	edits  []Edit  // by backend; nil for a name
}

// method is what becomes of the calls of one method.
type method struct {
	*codec.Method
	request, reply *rewrite.Plan
	choosers       []chooser
	all            bool   // without an owner: every backend
	skipMissing    bool   // a backend that lacks the method is left out
	toBack         []bool // by backend: whether its requests need editing
	toFront        []bool // by backend: whether its replies do
}

// chooser finds the backend by one value in the request.
type chooser struct {
	kind  string
	path  *rewrite.Path
	owner func(value []byte) (backend int, v verdict)
}

func compile(cfg Config) (*table, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	t := &table{
		backends:   cfg.Backends,
		methods:    map[string]*method{},
		classes:    []*class{nil},
		index:      map[string]int{},
		maxMessage: cfg.MaxMessage,
	}
	if t.maxMessage == 0 {
		t.maxMessage = DefaultMaxMessage
	}
	for i, b := range cfg.Backends {
		if b.Name != "" {
			t.index[b.Name] = i
		}
	}
	if cfg.Profile == nil {
		return t, nil
	}
	if err := cfg.Profile.check(); err != nil {
		return nil, err
	}
	methods := described(cfg.Profile, cfg.Schema)
	if len(methods) == 0 {
		return nil, fmt.Errorf("versions: the schema has no service in package %s", cfg.Profile.Versions[0].Package)
	}
	versions, err := compileVersions(cfg.Profile, methods, cfg.Conversions)
	if err != nil {
		return nil, err
	}
	t.versions = versions
	byName, err := t.compileClasses(cfg)
	if err != nil {
		return nil, err
	}
	for b := range t.backends {
		t.backEdits = append(t.backEdits, t.backEdit(b))
		t.frontEdits = append(t.frontEdits, t.frontEdit(b))
	}
	classes, err := classify(cfg.Profile, methods, byName)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, m := range methods {
		compiled, err := t.compileMethod(cfg.Profile, m, classes, byName)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		t.methods[m.Name] = compiled
		t.ordered = append(t.ordered, compiled)
	}
	if err := unmatched(cfg.Profile, methods); err != nil {
		errs = append(errs, err)
	}
	return t, errors.Join(errs...)
}

// described returns the methods that the profile is about: those of the newest
// version.
func described(p *Profile, s *codec.Schema) []*codec.Method {
	var methods []*codec.Method
	for _, m := range s.Methods() {
		if strings.HasPrefix(m.Name, "/"+p.Versions[0].Package+".") {
			methods = append(methods, m)
		}
	}
	return methods
}

// unmatched reports entries under methods that name no method, which would
// otherwise go unnoticed.
func unmatched(p *Profile, methods []*codec.Method) error {
	var errs []error
	for key := range p.Methods {
		for _, one := range strings.Split(key, "|") {
			if !slices.ContainsFunc(methods, func(m *codec.Method) bool { return match(one, shortName(m.Name)) }) {
				errs = append(errs, fmt.Errorf("methods.%s: no method is called %q", key, one))
			}
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

func (t *table) compileClasses(cfg Config) (map[string]rewrite.Class, error) {
	byName := map[string]rewrite.Class{}
	add := func(c *class) {
		byName[c.name] = rewrite.Class(len(t.classes))
		t.classes = append(t.classes, c)
	}
	var errs []error
	for _, kind := range sortedKeys(cfg.Profile.Names) {
		form := cfg.Profile.Names[kind]
		if form.Map != "" {
			n, err := mapped(form.Map, cfg.Backends)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			add(&class{name: kind, naming: n})
			continue
		}
		sep, err := separator(form.Front)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		add(&class{name: kind, naming: prefixed(kind, sep, form.Bare == "primary", cfg.Backends)})
	}
	for _, name := range sortedKeys(cfg.Profile.Edits) {
		make, ok := cfg.Edits[cfg.Profile.Edits[name].Replies]
		if !ok {
			errs = append(errs, fmt.Errorf("edits.%s.replies: there is no code called %q", name, cfg.Profile.Edits[name].Replies))
			continue
		}
		c := &class{name: name}
		for _, b := range cfg.Backends {
			c.edits = append(c.edits, make(b))
		}
		add(c)
	}
	return byName, errors.Join(errs...)
}

// roots are the messages that go in and out of methods.
func roots(methods []*codec.Method) []protoreflect.MessageDescriptor {
	var roots []protoreflect.MessageDescriptor
	for _, m := range methods {
		roots = append(roots, m.Input, m.Output)
	}
	return roots
}

func classify(p *Profile, methods []*codec.Method, byName map[string]rewrite.Class) (*rewrite.Classes, error) {
	var rules []rewrite.Rule
	for _, field := range sortedKeys(p.Fields) {
		rules = append(rules, rewrite.Rule{Field: field, Class: byName[p.Fields[field]]})
	}
	classes, err := rewrite.Classify(roots(methods), rules)
	if err != nil {
		return nil, fmt.Errorf("fields: %w", err)
	}
	return classes, nil
}

func (t *table) compileMethod(p *Profile, desc *codec.Method, classes *rewrite.Classes, byName map[string]rewrite.Class) (*method, error) {
	form, err := p.method(shortName(desc.Name))
	if err != nil {
		return nil, err
	}
	m := &method{
		Method:      desc,
		request:     classes.Plan(desc.Input),
		reply:       classes.Plan(desc.Output),
		all:         form.All != "",
		skipMissing: form.Missing == "skip",
	}
	for _, c := range form.Choose {
		path, err := rewrite.ParsePath(desc.Input, c.Path)
		if err != nil {
			return nil, fmt.Errorf("methods.%s.choose: %w", shortName(desc.Name), err)
		}
		if !path.IsText() {
			return nil, fmt.Errorf("methods.%s.choose: path %s does not lead to a string", shortName(desc.Name), c.Path)
		}
		owner := t.ownerByName
		if c.Kind != "backend" {
			owner = t.classes[byName[c.Kind]].naming.owner
		}
		m.choosers = append(m.choosers, chooser{c.Kind, path, owner})
	}
	if m.all {
		if desc.ClientStreams {
			return nil, fmt.Errorf("methods.%s.all: the client sends a stream, which can go to one backend only", shortName(desc.Name))
		}
		if lost := rewrite.Singular(desc.Output); len(lost) > 0 && desc.Unary() {
			return nil, fmt.Errorf("methods.%s.all: concat would keep only the last backend's %s", shortName(desc.Name), lost[0].FullName())
		}
	}
	for b := range t.backends {
		m.toBack = append(m.toBack, slices.ContainsFunc(m.request.Paths(), func(p rewrite.ClassifiedPath) bool {
			n := t.classes[p.Class].naming
			return n != nil && n.changes[b]
		}))
		m.toFront = append(m.toFront, slices.ContainsFunc(m.reply.Paths(), func(p rewrite.ClassifiedPath) bool {
			c := t.classes[p.Class]
			return c.naming == nil || c.naming.changes[b]
		}))
	}
	return m, nil
}

func (t *table) backEdit(backend int) rewrite.Edit {
	return func(dst []byte, c rewrite.Class, v []byte) ([]byte, error) {
		if n := t.classes[c].naming; n != nil {
			return n.toBack(dst, v, backend), nil
		}
		return append(dst, v...), nil
	}
}

func (t *table) frontEdit(backend int) rewrite.Edit {
	return func(dst []byte, c rewrite.Class, v []byte) ([]byte, error) {
		if n := t.classes[c].naming; n != nil {
			return n.toFront(dst, v, backend), nil
		}
		return t.classes[c].edits[backend](dst, v)
	}
}

// ownerByName is the owner of a value that is the name of a backend itself.
func (t *table) ownerByName(value []byte) (int, verdict) {
	if len(value) == 0 {
		return 0, silent
	}
	if i, ok := t.index[string(value)]; ok {
		return i, decided
	}
	return 0, ownerless
}

// names lists the backends for error messages.
func (t *table) names() string {
	var names []string
	for _, b := range t.backends {
		if b.Name != "" {
			names = append(names, b.Name)
		}
	}
	if len(names) == 0 {
		return "no backend but the primary"
	}
	return strings.Join(names, ", ")
}
