package director

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/profile"
	"github.com/criproxy/criproxy/internal/recovery"
	"github.com/criproxy/criproxy/rewrite"
)

// table is what a profile and a list of backends are compiled to: the fate of each method. It
// is immutable; calls under way finish on the table that they began with.
type table struct {
	backends   []Backend
	methods    map[string]*method // :: full method of the newest version
	ordered    []*method          // as in the schema
	classes    []*class           // :: rewrite.Class → what it is; 0 is none
	versions   *versions
	index      map[string]int // :: backend's name → its place
	everyone   []int          // the places of all backends
	told       *told          // the director's
	mirrors    *mirrors       // likewise
	notes      *notes
	maxMessage int
	native     bool // names say nothing about their backend
	newTo      int  // the backend that gets what is new
	mended     func(b Backend, method, field string)
	mirrored   func(Mirroring)
	panics     recovery.Hook

	packages      []string // of the API, in all versions
	unimplemented []string // patterns of methods that are not the primary's alone
	lookups       []string // full methods that the schema does not have, and that look one thing up
	assumptions   []string // what the profile should have said

	backEdits  []rewrite.Edit // by backend: what turns front names into its own
	frontEdits []rewrite.Edit // and back

	lookInterval time.Duration
	replaced     chan struct{} // closed when there is a next table
	next         *table
}

// method is what becomes of the calls of one method.
type method struct {
	*codec.Method
	request, reply *rewrite.Plan
	withhold       []withhold
	choosers       []chooser
	tells          []tell
	noted          *noted         // what is noted in its requests; nil: nothing
	notes          *rewrite.Plan  // finds messages with notes in its replies
	all            bool           // without an owner: every backend
	mirror         bool           // of every backend the first one answers; the others get the request as well
	endless        bool           // of every backend, a stream that does not end by itself
	recap          func() Recap   // makes up what the client missed; nil: that is lost
	begins         bool           // a name in its request asks for all names that begin so
	merge          Merge          // what makes one of their replies; nil: they are joined
	winners        []winner       // of fields that joining would lose
	shape          *rewrite.Shape // of replies that are merged; nil: they are not
	pages          *pages         // without an owner: page by page through all
	first          *rewrite.Path  // without an owner: one after another, until a reply has this
	unsure         *rewrite.Path  // a call with a value here succeeds though not every backend has answered; or nil
	isNew          bool           // without an owner: the backend for what is new
	unlessNew      *rewrite.Path  // but for calls that have a value here; nil: for all
	notFound       bool           // names of different backends are NotFound, not InvalidArgument
	skipMissing    bool           // a backend that lacks the method is left out
	toBack         []bool         // by backend: whether its requests need editing
	toFront        []bool         // by backend: whether its replies do
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
		mended:     cfg.Mended,
		mirrored:   cfg.Mirrored,
		panics:     cfg.Panicked,

		lookInterval: cmp.Or(cfg.LookInterval, defaultLookInterval),
		replaced:     make(chan struct{}),
	}
	if t.maxMessage == 0 {
		t.maxMessage = DefaultMaxMessage
	}
	for i, b := range cfg.Backends {
		t.everyone = append(t.everyone, i)
		if b.Name != "" {
			t.index[b.Name] = i
		}
	}
	t.newTo = t.index[cfg.NewTo] // the primary without a name
	if cfg.Profile == nil {
		return t, nil
	}
	if err := t.compileProfile(cfg); err != nil {
		return nil, cfg.Profile.Located(err)
	}
	return t, nil
}

func (t *table) compileProfile(cfg Config) error {
	errs := []error{cfg.Profile.Check()} // what follows finds further ones, as far as that is possible
	if len(cfg.Profile.Versions) == 0 {
		return errs[0]
	}
	methods := cfg.Profile.Describes(cfg.Schema)
	if len(methods) == 0 {
		return errors.Join(errs[0], fmt.Errorf("versions[0].package: the schema has no service in package %s%s", cfg.Profile.Versions[0].Package, profile.PackagesOf(cfg.Schema)))
	}
	versions, err := compileVersions(cfg.Profile, methods, cfg.Conversions)
	if err != nil {
		return errors.Join(errs[0], err)
	}
	t.versions, t.unimplemented = versions, cfg.Profile.Unimplemented
	for _, name := range cfg.Profile.Elsewhere {
		t.lookups = append(t.lookups, "/"+name)
	}
	for _, v := range cfg.Profile.Versions {
		t.packages = append(t.packages, v.Package)
	}
	byName, err := t.compileClasses(cfg)
	if errs[0] != nil && err != nil {
		return errs[0] // which says where it is
	} else if err != nil {
		return err
	}
	for b := range t.backends {
		t.backEdits = append(t.backEdits, t.backEdit(b))
		t.frontEdits = append(t.frontEdits, t.frontEdit(b))
	}
	all := profile.MessagesOf(methods)
	classes, err := cfg.Profile.Classify(all, byName)
	errs = append(errs, err)
	if err := t.compileNotes(cfg.Profile, all, classes); err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, m := range methods {
		compiled, err := t.compileMethod(cfg, m, classes, byName)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		t.methods[m.Name] = compiled
		t.ordered = append(t.ordered, compiled)
	}
	for _, name := range sortedKeys(cfg.Profile.Written.Requests) {
		if !slices.ContainsFunc(methods, func(m *codec.Method) bool { return profile.ShortName(m.Name) == name }) {
			errs = append(errs, fmt.Errorf("written.requests.%s: no method is called so", name))
		}
	}
	if err := cfg.Profile.Unmatched(methods); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (t *table) compileMethod(cfg Config, desc *codec.Method, classes *rewrite.Classes, byName map[string]rewrite.Class) (*method, error) {
	form, key, err := cfg.Profile.Method(desc.Name)
	if err != nil {
		return nil, err
	}
	var errs []error
	fail := func(what string, err error) { // also where the key is a pattern
		if key != profile.ShortName(desc.Name) {
			err = fmt.Errorf("%s: %w", profile.ShortName(desc.Name), err)
		}
		errs = append(errs, fmt.Errorf("methods.%s.%s: %w", key, what, err))
	}
	m := &method{
		Method:      desc,
		request:     classes.Plan(desc.Input),
		reply:       classes.Plan(desc.Output),
		all:         form.All != "",
		skipMissing: form.Missing == "skip",
		notFound:    form.Mismatch == "not-found",
		begins:      filtersByBeginning(cfg.Profile, desc),
		notes:       t.notes.classes.Plan(desc.Output),
	}
	if written, ok := cfg.Profile.Written.Requests[profile.ShortName(desc.Name)]; ok {
		if m.noted, err = t.compileNoted(desc.Input, written, classes); err != nil {
			errs = append(errs, fmt.Errorf("written.requests.%s: %w", profile.ShortName(desc.Name), err))
		}
	}
	for _, c := range form.Choose {
		chooser, err := t.compileChooser(cfg, c, desc, byName)
		if err != nil {
			fail("choose", err)
			continue
		}
		m.choosers = append(m.choosers, chooser)
	}
	if form.First != "" {
		if m.first, err = rewrite.ParsePath(desc.Output, form.First); err != nil {
			fail("first", err)
		}
	}
	if form.Unsure != "" {
		if m.unsure, err = textPath(desc.Input, form.Unsure); err != nil {
			fail("unsure", err)
		}
	}
	if form.New != nil {
		m.isNew = true
		if form.New.Unless != "" {
			if m.unlessNew, err = textPath(desc.Input, form.New.Unless); err != nil {
				fail("new.unless", err)
			}
		}
		if m.all || m.first != nil {
			fail("new", errors.New("is for methods of one backend, without all and first"))
		}
	}
	if m.tells, err = t.compileTells(form.Tells, desc, classes); err != nil {
		fail("tells", err)
	}
	if m.withhold, err = t.compileWithhold(cfg, form.Withhold, desc, classes); err != nil {
		fail("withhold", err)
	}
	if m.all {
		if m.mirror = form.All == "mirror"; len(t.backends) > 1 && !m.mirror {
			m.shape = rewrite.NewShape(desc.Output)
		}
		if desc.ClientStreams {
			fail("all", errors.New("the client sends a stream, which can go to one backend only"))
		}
		if m.endless = form.All == "endless"; m.endless {
			if desc.Unary() {
				fail("all", errors.New("is \"endless\", which is for streams"))
			}
			if m.recap = cfg.Recaps[form.Recap]; m.recap == nil && form.Recap != "" {
				fail("recap", fmt.Errorf("there is no code called %q", form.Recap))
			}
		} else if m.mirror {
			if !desc.Unary() {
				fail("all", errors.New("is \"mirror\", which is for methods with one request and one reply"))
			}
		} else if form.All == "pages" {
			if m.pages, err = compilePages(form.Pages, desc); err != nil {
				fail("pages", err)
			}
		} else if form.All != "concat" {
			if m.merge = cfg.Merges[form.All]; m.merge == nil || !desc.Unary() {
				fail("all", fmt.Errorf("is %q, want \"concat\", \"mirror\", \"pages\", \"endless\" or, for a method with one reply, code of that name", form.All))
			}
		} else if m.winners, err = t.compileWinners(form, desc, cfg.Profile.Fitted()); err != nil {
			fail("winners", err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
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
