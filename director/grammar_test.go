package director_test

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/profile"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// says is a server that answers every call with one book.
func says(book string) muxtest.Handler {
	return muxtest.Unary(func(context.Context, string, *codec.Frame) (*codec.Frame, error) {
		return muxtest.Bytes("Book", book), nil
	})
}

func TestWinnersDecideSingularFieldsOfJoinedReplies(t *testing.T) {
	conn := muxtest.Mux(t, director.Config{Profile: muxtest.LibraryProfile(t,
		"Tidy: {all: concat, missing: skip}", "Get: {all: concat, winners: {id: first, title: primary, colour: last}}")},
		says(`title: "a" labels {key: "k" value: "a"}`), says(`id: "1" title: "b" colour: BLUE labels {key: "l" value: "b"}`), says(`id: "2" colour: RED`))
	reply := &codec.Frame{}
	require.NoError(t, conn.Invoke(t.Context(), muxtest.Method("Get"), muxtest.Frame(t, "GetRequest", ""), reply))
	assert.Equal(t, `title: "a" labels["k"]: "a" id: "beta.io__1" labels["l"]: "b" colour: BLUE`, muxtest.Text("Book", reply))

	// RED is zero, which is not on the wire: "last" is the last backend with a value.
	conn = muxtest.Mux(t, director.Config{Profile: muxtest.LibraryProfile(t,
		"Tidy: {all: concat, missing: skip}", "Get: {all: concat, winners: {id: primary, title: primary, colour: primary}}")},
		says(`id: "1"`), says(`id: "2" title: "b" colour: BLUE quotes {id: "3"}`))
	require.NoError(t, conn.Invoke(t.Context(), muxtest.Method("Get"), muxtest.Frame(t, "GetRequest", ""), reply))
	assert.Equal(t, `id: "1" quotes {id: "beta.io__3"}`, muxtest.Text("Book", reply))
}

func TestAFittedProfileAssumesThePrimaryWins(t *testing.T) {
	base := muxtest.LibraryProfile(t, "Tidy: {all: concat, missing: skip}", "Get: {all: concat, missing: skip, winners: {id: first}}")
	cfg := director.Config{Profile: base, Schema: muxtest.Library, Backends: []director.Backend{{}, {Name: "b"}}}
	_, err := director.New(cfg)
	assert.ErrorContains(t, err, "each backend replies with a value of title, colour", "a profile must say all of its own schema")

	cfg.Profile = base.Fit(muxtest.Library)
	d := muxtest.New(t, cfg)
	require.Len(t, d.Assumptions(), 1)
	assert.Equal(t, "Get: each backend replies with a value of title, colour, the joined reply holds only one, and the profile does not say whose: criproxy takes the primary's; to choose another add rules: "+
		"{methods: {Get: {all: concat, missing: skip, winners: {id: first, title: first, colour: first}}}}", d.Assumptions()[0])

	rules, err := profile.ParseRules([]byte("methods: {Get: {all: concat, missing: skip, winners: {id: first, title: first, colour: first}}}"))
	require.NoError(t, err)
	cfg.Profile, err = cfg.Profile.Extend(rules)
	require.NoError(t, err)
	require.NoError(t, d.Reload(cfg))
	assert.Empty(t, d.Assumptions(), "the rule that is recommended is one")

	cfg.Profile = base.Fit(muxtest.Library)
	cfg.Backends = cfg.Backends[:1]
	require.NoError(t, d.Reload(cfg))
	assert.Empty(t, d.Assumptions(), "of one backend nothing is joined")
}

func routes(t *testing.T, p *director.Profile) map[string]string {
	t.Helper()
	d := muxtest.New(t, director.Config{Profile: p, Schema: muxtest.Library, Backends: []director.Backend{{}, {Name: "b"}}})
	goes := map[string]string{}
	for _, f := range d.Routes() {
		goes[f.Method[len(muxtest.Method("")):]] = f.Goes
	}
	return goes
}

func TestTheMostExactKeyOfAMethodCounts(t *testing.T) {
	const title = "by backend book.title"
	put := func(keys string) string {
		return routes(t, muxtest.LibraryProfile(t, "  Put:\n    choose:\n      - shelf: shelf\n      - backend: labels[\"backend\"]\n", keys))["Put"]
	}
	assert.Contains(t, put("  Library/Put: {choose: [backend: book.title]}\n  Put: {choose: [backend: 'labels[\"a\"]']}\n"), title)
	assert.Contains(t, put("  Put: {choose: [backend: book.title]}\n  Library/P*: {choose: [backend: 'labels[\"a\"]']}\n"), title)
	assert.Contains(t, put("  library.v1.Library/P*: {choose: [backend: book.title]}\n  P*: {choose: [backend: 'labels[\"a\"]']}\n"), title)
	assert.Contains(t, put("  P*|X*: {choose: [backend: book.title]}\n"), title, "a pattern for what is to come")

	_, err := director.New(director.Config{Schema: muxtest.Library, Backends: make([]director.Backend, 1), Profile: muxtest.LibraryProfile(t,
		"  Put:\n", "  P*|Pu*: {}\n  \"*t\": {}\n  Libary/Get: {}\n  X*: {}\n  Put:\n")})
	assert.EqualError(t, err, `22:3: methods.Libary/Get: no method is called "Libary/Get" (did you mean "Get"?)
23:3: methods.X*: no method is called "X*"`, "the name goes before both patterns")
	_, err = director.New(director.Config{Schema: muxtest.Library, Backends: make([]director.Backend, 1), Profile: muxtest.LibraryProfile(t,
		"  Put:\n", "  P*: {}\n  Pu*:\n")})
	assert.EqualError(t, err, "21:3: methods.Pu*: Put is matched by P* and Pu*; write it out under its own name")
}

func TestHarmlessGoesBeforePatternsOfFields(t *testing.T) {
	base := muxtest.LibraryProfile(t, `"*.lender_id": book`, `"*.*_id": book`, "  Book: [title, labels]", "  Book: [title, labels]\n  GetRequest: [lender_id]")
	d := muxtest.New(t, director.Config{Profile: base, Schema: muxtest.Library, Backends: []director.Backend{{}, {Name: "b"}}})
	for _, f := range d.Routes() {
		if f.Method == muxtest.Method("Get") {
			assert.Equal(t, []director.Translated{{Path: "book_id", Kind: "book"}}, f.Request)
		}
		if f.Method == muxtest.Method("List") {
			assert.Equal(t, []director.Translated{{Path: "book_id", Kind: "book"}, {Path: "lender_id", Kind: "book"}}, f.Request)
		}
	}
	_, err := director.New(director.Config{Schema: muxtest.Library, Backends: make([]director.Backend, 1), Profile: muxtest.LibraryProfile(t,
		"  Book: [title, labels]", "  Book: [titel, labels]")})
	assert.EqualError(t, err, `12:3: harmless.Book.titel: no such field (did you mean "title"?)`)
}

func TestMoreRulesGoBeforeThoseOfTheProfile(t *testing.T) {
	rules, err := profile.ParseRules([]byte(`
fields: {Book.title: book}
harmless: {PutRequest: [shelf]}
methods:
  Stream: {}
  Get: {choose: [backend: lender_id]}
`))
	require.NoError(t, err)
	base := muxtest.LibraryProfile(t)
	more, err := base.Extend(rules)
	require.NoError(t, err)
	goes := routes(t, more)
	assert.Equal(t, "to all", routes(t, base)["Stream"][len(routes(t, base)["Stream"])-6:], "the base is as it was")
	assert.Contains(t, goes["List"], "to all")
	assert.Contains(t, goes["Stream"], "to the primary", "one of the names of a key has another rule now")
	assert.Contains(t, goes["Get"], "by backend lender_id")
	fields, err := profile.FieldsOf(more, muxtest.Library)
	require.NoError(t, err)
	assert.Empty(t, fields.Unclassified())

	_, err = base.Extend(&director.Profile{Probe: "x"})
	assert.EqualError(t, err, "versions: rules are added to a profile, and cannot have versions or probe; leave them out")
	rules, err = profile.ParseRules([]byte("\nfields: {Book.title: boook}"))
	require.NoError(t, err)
	_, err = base.Extend(rules)
	assert.EqualError(t, err, `2:10: fields.Book.title: "boook" is neither under names nor under edits (did you mean "book"?)`)
	_, err = profile.ParseRules([]byte("felds: {}"))
	assert.EqualError(t, err, `1:1: felds: unknown key (did you mean "fields"?)`)
}

func TestMistakesInWhatIsRecalledAreNamed(t *testing.T) {
	library, err := os.ReadFile("../internal/testing/muxtest/library.yaml")
	require.NoError(t, err)
	for put, want := range map[string]string{
		`choose: [told: labels]`:                            `methods.Put.choose: path labels does not lead to a string`,
		`choose: [told: titel]`:                             `methods.Put.choose: path titel: library.v1.PutRequest has no field "titel"`,
		`choose: [known: book.id]`:                          `methods.Put.choose: known: "book.id": want a field of the items of a list, and one of the request, as in "ListPodSandbox.labels = filter.labels"`,
		`choose: [known: List = book]`:                      `methods.Put.choose: known: path book does not lead to a string; "without" is for maps`,
		`choose: [known: 'List.id = book.id without "a"']`:  `methods.Put.choose: known: path book.id does not lead to a string; "without" is for maps`,
		`choose: [known: 'List.labels = labels without a']`: `methods.Put.choose: known: without: a has no quotes; want keys in quotes, as in: without "app", "tier"`,
		`choose: [known: List.id = labels]`:                 `methods.Put.choose: known: path id does not lead to a map`,
		`choose: [known: Lost.labels = labels]`:             `methods.Put.choose: known: the profile's known.lists has no list "Lost"`,
		`tells: {labels: book.id}`:                          `methods.Put.tells: path labels does not lead to a string`,
		`tells: {shelf: book.title}`:                        `methods.Put.tells: book.title holds no name`,
		`unsure: shelf`:                                     `methods.Put.unsure: is for first`,
		`{first: title, unsure: labels}`:                    `methods.Put.unsure: path labels does not lead to a string`,
	} {
		if !strings.HasPrefix(put, "{") {
			put = "{" + put + "}"
		}
		p, err := director.ParseProfile([]byte(strings.Replace(string(library), "  Put:\n    choose:\n      - shelf: shelf\n      - backend: labels[\"backend\"]\n", "  Put: "+put+"\n", 1)))
		if err == nil {
			_, err = director.New(director.Config{Schema: muxtest.Library, Backends: make([]director.Backend, 1), Profile: p})
		}
		assert.ErrorContains(t, err, want, put)
	}
}

func TestMistakesInWhatIsWrittenAreNamed(t *testing.T) {
	for written, want := range map[string]string{
		`requests: {Putt: {names: [book.id], note: labels}}`:   `written.requests.Putt: there is no method with that name`,
		`requests: {Put: {names: [book.id], note: shelf}}`:     `written.requests.Put: path shelf does not lead to a map of strings`,
		`requests: {Put: {names: [book.title], note: labels}}`: `written.requests.Put: book.title holds no name`,
		`replies: {Bok: {names: [id], note: labels}}`:          `written.replies.Bok: no reply has such a message`,
		`replies: {Book: {names: [id], note: label}}`:          `written.replies.Book: path label: library.v1.Book has no field "label" (did you mean "labels"?)`,
	} {
		_, err := director.New(director.Config{Schema: muxtest.Library, Backends: make([]director.Backend, 1),
			Profile: muxtest.LibraryProfile(t, "\nmethods:\n", "\nwritten: {"+written+"}\nmethods:\n")})
		assert.ErrorContains(t, err, want, written)
	}
}
