package director

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/base/recovery"
	"github.com/criproxy/criproxy/internal/inventory"
	"github.com/criproxy/criproxy/internal/profile"
	"github.com/criproxy/criproxy/rewrite"
)

// A table says what to do with each method. It is compiled from a profile and a list of backends, and
// is immutable, but for links, which its use sets, and next, which the next table's use sets. Calls under way finish with the
// table with which they began.
type table struct {
	backends   []Backend
	calls      []codec.Caller     // :: backend → its connection
	links      []link             // :: backend → where its connection led when the table came into use
	methods    map[string]*method // :: full method of the newest version, or of a lookup
	ordered    []*method          // in the order of the schema
	classes    []*class           // :: rewrite.Class → what it is; 0 is none
	versions   *profile.Versions
	everyone   []int       // the places of all backends
	affinities *affinities // the director's
	mirrors    *mirrors    // the director's
	notes      *notes
	maxMessage int
	native     bool // names have no prefixes
	newTo      int  // the backend for new objects
	mended     func(b Backend, method, field string)
	mirrored   func(Mirroring)
	panics     recovery.Hook
	pass       func(context.Context, grpc.ClientConnInterface, grpc.ServerStream) error // see Config.Pass

	packages      []string // of the API, in all versions
	unimplemented []string // patterns of unknown methods that fail instead of going to the primary
	assumptions   []string // what the director assumes where the profile leaves something open

	backEdits  []rewrite.Edit // by backend: turn front names into back names
	frontEdits []rewrite.Edit // by backend: turn back names into front names

	lookInterval time.Duration
	replaced     chan struct{} // closed when there is a next table
	next         *table
}

// A method says what to do with the calls of one method. It is immutable, and belongs to its table. Where no name and no chooser
// decides, a call has no owner: then all, first or isNew says where it goes, and without them it goes to the primary. With
// all, at most one of mirror, endless, merge and pages is set, and without them the replies are joined.
type method struct {
	*codec.Method
	request, reply *rewrite.Plan
	withhold       []withhold
	choosers       []chooser
	affinities     []affinity
	noted          *noted         // what to note in its requests; nil: nothing
	notes          *rewrite.Plan  // finds messages with notes in its replies
	all            bool           // a call without an owner goes to every backend
	mirror         bool           // of every backend, the first one answers, and the others get the request later
	endless        bool           // of every backend, an endless stream
	resync         func() Resync  // makes the messages that the client missed; nil: they are lost
	begins         bool           // a request may have the beginning of a name
	merge          Merge          // merges the replies; nil: they are joined
	winners        []winner       // of fields that joining would lose
	listed         bool           // a cached reply has the items of the list, and no other field
	shape          *rewrite.Shape // of replies that are merged; nil: they are not
	pages          *pages         // a call without an owner goes through all backends page by page; or nil
	first          *rewrite.Path  // a call without an owner goes to one backend after another until a reply has this; or nil
	lookup         bool           // a call goes to one backend after another until one answers; the schema does not have the method, which is unary
	unsure         *rewrite.Path  // a call with a value here succeeds though not every backend has answered; or nil
	isNew          bool           // a call without an owner goes to the backend for new objects
	unlessNew      *rewrite.Path  // unless it has a value here; nil: always
	notFound       bool           // names of different backends are NotFound, not InvalidArgument
	skipMissing    bool           // a merge leaves out a primary that lacks the method
	toBack         []bool         // by backend: its requests need editing
	toFront        []bool         // by backend: its replies need editing
}

// A link is where a [Backend.Conn] leads: one that goes on to another connection, as a [Memory] does, has a Generation, which
// grows each time.
type link struct {
	conn       grpc.ClientConnInterface
	generation uint64
}

// linkOf returns where a connection leads now. Two links of one backend differ if calls through them may reach another runtime.
func linkOf(conn grpc.ClientConnInterface) link {
	l := link{conn: conn}
	if c, ok := conn.(interface{ Generation() uint64 }); ok {
		l.generation = c.Generation()
	}
	return l
}

// compile makes a table. It finds every mistake that cfg has: after it nothing can fail but calls.
func compile(cfg Config) (*table, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	t := &table{
		backends:   cfg.Backends,
		methods:    map[string]*method{},
		classes:    []*class{nil},
		maxMessage: cmp.Or(cfg.MaxMessage, DefaultMaxMessage),
		native:     cfg.NativeNames,
		mended:     cfg.Mended,
		mirrored:   cfg.Mirrored,
		panics:     cfg.Panicked,
		pass:       cfg.Pass,

		lookInterval: cmp.Or(cfg.LookInterval, defaultLookInterval),
		replaced:     make(chan struct{}),
	}
	for i, b := range cfg.Backends {
		t.everyone = append(t.everyone, i)
		t.calls = append(t.calls, codec.CallerOf(b.Conn))
	}
	t.newTo = max(t.place(cfg.NewTo), 0) // an empty name is that of the primary
	if cfg.Profile == nil {
		return t, nil
	}
	if err := t.compileProfile(cfg); err != nil {
		return nil, cfg.Profile.Located(err)
	}
	return t, nil
}

// compileProfile compiles the profile, and finds as many of its mistakes as it can. What later steps need comes first: versions,
// classes of fields, and notes. A mistake in one of these ends it, because it would cause others.
func (t *table) compileProfile(cfg Config) error {
	errs := []error{cfg.Profile.Check()} // the checks below find further mistakes, where they still can
	if len(cfg.Profile.Versions) == 0 {
		return errs[0]
	}
	methods := cfg.Profile.Describes(cfg.Schema)
	if len(methods) == 0 {
		return errors.Join(errs[0], fmt.Errorf("versions[0].package: the schema has no service in package %s%s", cfg.Profile.Versions[0].Package, profile.PackagesOf(cfg.Schema)))
	}
	versions, err := profile.VersionsOf(cfg.Profile, methods, func(name string) (profile.Conversion, bool) {
		c, ok := cfg.Conversions[name]
		return profile.Conversion(c), ok
	})
	if err != nil {
		return errors.Join(errs[0], err)
	}
	t.versions, t.unimplemented = versions, cfg.Profile.Unimplemented
	for _, v := range cfg.Profile.Versions {
		t.packages = append(t.packages, v.Package)
	}
	for _, name := range cfg.Profile.Elsewhere {
		if name = "/" + name; len(t.backends) > 1 && t.refuse(name) == nil {
			none := make([]bool, len(t.backends))
			t.methods[name] = &method{Method: &codec.Method{Name: name}, lookup: true, toBack: none, toFront: none}
		}
	}
	byName, err := t.compileClasses(cfg)
	if errs[0] != nil && err != nil {
		return errs[0] // the same mistake, with its place
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
			errs = append(errs, fmt.Errorf("written.requests.%s: there is no method with that name", name))
		}
	}
	return errors.Join(append(errs, cfg.Profile.Unmatched(methods))...)
}

// compileMethod compiles what the profile says of one method, under its key, which may be a pattern that several methods match.
func (t *table) compileMethod(cfg Config, desc *codec.Method, classes *rewrite.Classes, byName map[string]rewrite.Class) (*method, error) {
	form, key, err := cfg.Profile.Method(desc.Name)
	if err != nil {
		return nil, err
	}
	var errs []error
	fail := func(what string, err error) { // the key may be a pattern
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
		if m.unsure, err = rewrite.ParseTextPath(desc.Input, form.Unsure); err != nil {
			fail("unsure", err)
		}
	}
	if form.New != nil {
		m.isNew = true
		if form.New.Unless != "" {
			if m.unlessNew, err = rewrite.ParseTextPath(desc.Input, form.New.Unless); err != nil {
				fail("new.unless", err)
			}
		}
		if m.all || m.first != nil {
			fail("new", errors.New("is for methods that go to one backend, without \"all\" and \"first\""))
		}
	}
	if m.affinities, err = t.compileAffinities(form.Tells, desc, classes); err != nil {
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
			if m.resync = cfg.Resyncs[form.Resync]; m.resync == nil && form.Resync != "" {
				fail("resync", fmt.Errorf("there is no code called %q", form.Resync))
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
				fail("all", fmt.Errorf("%q: want \"concat\", \"mirror\", \"pages\", \"endless\" or, for a method with one reply, code of that name", form.All))
			}
		} else if m.winners, err = t.compileWinners(form, desc, cfg.Profile.Fitted()); err != nil {
			fail("winners", err)
		} else {
			m.listed = slices.ContainsFunc(cfg.Profile.Known.Lists, func(l inventory.List) bool { return l.List == profile.ShortName(desc.Name) })
		}
		if m.pages == nil && !m.mirror && desc.Unary() && len(t.backends) > 1 {
			t.assumptions = append(t.assumptions, sharedPages(desc)...)
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

// backEdit returns the edit that turns front names in a request into names of a backend.
func (t *table) backEdit(backend int) rewrite.Edit {
	return func(dst []byte, c rewrite.Class, v []byte) ([]byte, error) {
		if n := t.classes[c].naming; n != nil {
			return n.toBack(dst, v, backend), nil
		}
		return append(dst, v...), nil
	}
}

// frontEdit returns the edit that turns names of a backend into front names, and edits other fields of a reply.
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

// names says, in an error message, which names clients can use for backends.
func (t *table) names() string {
	var names []string
	for _, b := range t.backends {
		names = append(names, cmp.Or(b.Name, "the primary (which has no name)"))
	}
	if len(t.backends) == 1 && t.backends[0].Name == "" {
		return "there is only the primary"
	}
	return "the backends are " + strings.Join(names, ", ")
}
