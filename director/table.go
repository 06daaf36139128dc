package director

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/contain"
	"github.com/criproxy/criproxy/internal/suggest"
	"github.com/criproxy/criproxy/known"
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
	native     bool // names say nothing about their backend
	newTo      int  // the backend of what is new and nobody's

	packages      []string // of the API, in all versions
	unimplemented []string // patterns of methods that are not the primary's alone

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
	withhold       []withhold
	choosers       []chooser
	all            bool          // without an owner: every backend
	merge          Merge         // what makes one of their replies; nil: they are joined
	winners        []winner      // of fields that joining would lose
	pages          *pages        // without an owner: page by page through all
	first          *rewrite.Path // without an owner: one after another, until a reply has this
	isNew          bool          // without an owner: the backend for what is new
	unlessNew      *rewrite.Path // but for calls that have a value here; nil: for all
	notFound       bool          // names of different backends are NotFound, not invalid
	skipMissing    bool          // a backend that lacks the method is left out
	toBack         []bool        // by backend: whether its requests need editing
	toFront        []bool        // by backend: whether its replies do
}

// chooser finds the backend by one value in the request, or in the metadata that
// comes with it.
type chooser struct {
	kind  string
	where string // as the profile has it
	path  *rewrite.Path
	key   string // of the metadata, if there is no path
	owner func(ctx context.Context, value []byte) (backend int, v verdict)
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
		native:     cfg.NativeNames,
	}
	if t.maxMessage == 0 {
		t.maxMessage = DefaultMaxMessage
	}
	for i, b := range cfg.Backends {
		if b.Name != "" {
			t.index[b.Name] = i
		}
	}
	t.newTo = t.index[cfg.NewTo] // the primary without a name
	if cfg.Profile == nil {
		return t, nil
	}
	if err := t.compileProfile(cfg); err != nil {
		return nil, cfg.Profile.located(err)
	}
	return t, nil
}

func (t *table) compileProfile(cfg Config) error {
	if err := cfg.Profile.check(); err != nil {
		return err
	}
	methods := described(cfg.Profile, cfg.Schema)
	if len(methods) == 0 {
		return fmt.Errorf("versions[0].package: the schema has no service in package %s%s", cfg.Profile.Versions[0].Package, packages(cfg.Schema))
	}
	versions, err := compileVersions(cfg.Profile, methods, cfg.Conversions)
	if err != nil {
		return err
	}
	t.versions, t.unimplemented = versions, cfg.Profile.Unimplemented
	for _, v := range cfg.Profile.Versions {
		t.packages = append(t.packages, v.Package)
	}
	byName, err := t.compileClasses(cfg)
	if err != nil {
		return err
	}
	for b := range t.backends {
		t.backEdits = append(t.backEdits, t.backEdit(b))
		t.frontEdits = append(t.frontEdits, t.frontEdit(b))
	}
	classes, err := classify(cfg.Profile, messages(methods), byName)
	if err != nil {
		return err
	}
	var errs []error
	for _, m := range methods {
		compiled, err := t.compileMethod(cfg, m, classes, byName)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		t.methods[m.Name] = compiled
		t.ordered = append(t.ordered, compiled)
	}
	if err := unmatchedKeys(cfg.Profile, methods); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
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

// unmatchedKeys reports entries under methods and quiet that name no method, which
// would otherwise go unnoticed.
func unmatchedKeys(p *Profile, methods []*codec.Method) error {
	var errs []error
	var names []string
	for _, m := range methods {
		names = append(names, shortName(m.Name))
	}
	look := func(section, key string) {
		if missing, bad := unmatched(key, methods); bad {
			errs = append(errs, fmt.Errorf("%s.%s: no method is called %q%s", section, key, missing, suggest.Nearest(shortName(missing), names)))
		}
	}
	for _, key := range sortedKeys(p.Methods) {
		look("methods", key)
	}
	for _, key := range sortedKeys(p.Quiet) {
		look("quiet", key)
	}
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
		if cfg.NativeNames && form.Bare == "primary" {
			add(&class{name: kind, naming: native(kind, cfg.Backends)})
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
		for i, b := range cfg.Backends {
			c.edits = append(c.edits, make(EditContext{b, len(cfg.Backends), func(dst []byte, kind string, name []byte) []byte {
				return t.classes[byName[kind]].naming.toFront(dst, name, i)
			}}))
		}
		add(c)
	}
	return byName, errors.Join(errs...)
}

// messages are those that go in and out of methods, and what they are made of.
func messages(methods []*codec.Method) *rewrite.Messages {
	var roots []protoreflect.MessageDescriptor
	for _, m := range methods {
		roots = append(roots, m.Input, m.Output)
	}
	return rewrite.Reachable(roots)
}

func classify(p *Profile, all *rewrite.Messages, byName map[string]rewrite.Class) (*rewrite.Classes, error) {
	var rules []rewrite.Rule
	for _, field := range sortedKeys(p.Fields) {
		rules = append(rules, rewrite.Rule{Field: field, Class: byName[p.Fields[field]]})
	}
	for _, message := range sortedKeys(p.Harmless) {
		for _, field := range p.Harmless[message] {
			rules = append(rules, rewrite.Rule{Field: message + "." + field})
		}
	}
	classes, err := all.Classify(rules)
	if err != nil {
		return nil, p.ruleErrors(err)
	}
	return classes, nil
}

// ruleErrors returns the mistakes of rules with the sections they stand in.
func (p *Profile) ruleErrors(err error) error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return err
	}
	var errs []error
	for _, one := range joined.Unwrap() {
		var rule *rewrite.RuleError
		if !errors.As(one, &rule) {
			errs = append(errs, one)
			continue
		}
		section := "fields."
		if _, named := p.Fields[rule.Field]; !named {
			section = "harmless."
		}
		errs = append(errs, fmt.Errorf("%s%w", section, one))
	}
	return errors.Join(errs...)
}

// packages says which packages a schema has services in.
func packages(s *codec.Schema) string {
	var names []string
	for _, m := range s.Methods() {
		service, _, _ := strings.Cut(strings.TrimPrefix(m.Name, "/"), "/")
		name := service[:max(0, strings.LastIndexByte(service, '.'))]
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ", nor in any other"
	}
	return "; it has " + strings.Join(names, ", ")
}

func (t *table) compileMethod(cfg Config, desc *codec.Method, classes *rewrite.Classes, byName map[string]rewrite.Class) (*method, error) {
	form, key, err := cfg.Profile.method(desc.Name)
	if err != nil {
		return nil, err
	}
	wrong := func(what string, err error) error { // also where the key is a pattern
		if key != shortName(desc.Name) {
			err = fmt.Errorf("%s: %w", shortName(desc.Name), err)
		}
		return fmt.Errorf("methods.%s.%s: %w", key, what, err)
	}
	m := &method{
		Method:      desc,
		request:     classes.Plan(desc.Input),
		reply:       classes.Plan(desc.Output),
		all:         form.All != "",
		skipMissing: form.Missing == "skip",
		notFound:    form.Mismatch == "not-found",
	}
	for _, c := range form.Choose {
		chooser, err := t.compileChooser(c, desc, byName)
		if err != nil {
			return nil, wrong("choose", err)
		}
		m.choosers = append(m.choosers, chooser)
	}
	if form.First != "" {
		if m.first, err = rewrite.ParsePath(desc.Output, form.First); err != nil {
			return nil, wrong("first", err)
		}
	}
	if form.New != nil {
		m.isNew = true
		if form.New.Unless != "" {
			if m.unlessNew, err = rewrite.ParsePath(desc.Input, form.New.Unless); err != nil {
				return nil, wrong("new.unless", err)
			}
			if !m.unlessNew.IsText() {
				return nil, wrong("new.unless", fmt.Errorf("path %s does not lead to a string", form.New.Unless))
			}
		}
		if m.all || m.first != nil {
			return nil, wrong("new", errors.New("is for methods of one backend, without all and first"))
		}
	}
	if m.withhold, err = t.compileWithhold(cfg, form.Withhold, desc, classes); err != nil {
		return nil, wrong("withhold", err)
	}
	if m.all {
		if desc.ClientStreams {
			return nil, wrong("all", errors.New("the client sends a stream, which can go to one backend only"))
		}
		if form.All == "pages" {
			if m.pages, err = compilePages(form.Pages, desc); err != nil {
				return nil, wrong("pages", err)
			}
		} else if form.All != "concat" {
			if m.merge = cfg.Merges[form.All]; m.merge == nil || !desc.Unary() {
				return nil, wrong("all", fmt.Errorf("is %q, want \"concat\", \"pages\" or, for a method with one reply, code of that name", form.All))
			}
		} else if m.winners, err = compileWinners(form.Winners, desc); err != nil {
			return nil, wrong("winners", err)
		}
	}
	for b := range t.backends {
		m.toBack = append(m.toBack, slices.ContainsFunc(m.request.Paths(), func(p rewrite.ClassifiedPath) bool {
			n := t.classes[p.Class].naming
			return n != nil && n.changes[b]
		}))
		m.toFront = append(m.toFront, slices.ContainsFunc(m.reply.Paths(), func(p rewrite.ClassifiedPath) bool {
			c := t.classes[p.Class]
			return c.naming == nil && c.edits[b] != nil || c.naming != nil && c.naming.changes[b]
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
		if edit := t.classes[c].edits[backend]; edit != nil {
			return edit(dst, v)
		}
		return append(dst, v...), nil
	}
}

func (t *table) compileChooser(form ChooseForm, desc *codec.Method, byName map[string]rewrite.Class) (chooser, error) {
	c := chooser{kind: form.Kind}
	at := form.Path
	if form.Kind == "known" {
		item, request, ok := strings.Cut(form.Path, "=")
		if !ok {
			return c, fmt.Errorf("known: is %q, want \"List.path = path\"", form.Path)
		}
		at = strings.TrimSpace(request)
		listed, path, _ := strings.Cut(strings.TrimSpace(item), ".")
		var err error
		if c.owner, err = t.ownerByMemory(listed, path); err != nil {
			return c, fmt.Errorf("known: %w", err)
		}
	}
	c.where = at
	if quoted, ok := strings.CutPrefix(at, "metadata["); ok {
		key, err := strconv.Unquote(strings.TrimSuffix(quoted, "]"))
		if err != nil || key != strings.ToLower(key) {
			return c, fmt.Errorf("%s: want metadata[\"key\"], the key in lower case", at)
		}
		c.key = key
	} else {
		var err error
		if c.path, err = rewrite.ParsePath(desc.Input, at); err != nil {
			return c, err
		}
		if !c.path.IsText() {
			return c, fmt.Errorf("path %s does not lead to a string", at)
		}
	}
	switch form.Kind {
	case "known":
	case "backend":
		c.owner = t.ownerByName
	default:
		c.owner = t.classes[byName[form.Kind]].naming.owner
	}
	return c, nil
}

// ownerByMemory finds the first backend that is known to have an item in a list.
// Before it is said that nobody has, those are asked where something has changed:
// a client that has made a thing names it in its next call. Nobody is the owner
// where nothing is remembered.
func (t *table) ownerByMemory(listed, path string) (func(context.Context, []byte) (int, verdict), error) {
	finders := make([]*known.Finder, len(t.backends))
	for i, b := range t.backends {
		if b.Known == nil {
			continue
		}
		var err error
		if finders[i], err = b.Known.Finder(listed, path); err != nil {
			return nil, err
		}
	}
	find := func(value []byte) (int, verdict) {
		for i, f := range finders {
			if f != nil && f.Has(value) {
				return i, decided
			}
		}
		return 0, silent
	}
	return func(ctx context.Context, value []byte) (int, verdict) {
		if len(value) == 0 {
			return 0, silent
		}
		// Who gets what is new goes first: a thing that was made anew there has left its
		// remains where it was before.
		if f := finders[t.newTo]; f != nil && t.newTo > 0 {
			if !f.Has(value) {
				_ = contain.Run("finding a name", func() { f.Renew(ctx) }) // told there; it is not found
			}
			if f.Has(value) {
				return t.newTo, decided
			}
		}
		i, v := find(value)
		if v == decided {
			return i, v
		}
		var all sync.WaitGroup
		for _, f := range finders {
			if f != nil {
				all.Go(func() { _ = contain.Run("finding a name", func() { f.Renew(ctx) }) }) // told there; it is not found
			}
		}
		all.Wait()
		return find(value)
	}, nil
}

// ownerByName is the owner of a value that is the name of a backend itself.
func (t *table) ownerByName(_ context.Context, value []byte) (int, verdict) {
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
