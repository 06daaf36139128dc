package drift_test

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/drift"
	"github.com/criproxy/criproxy/internal/profile"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// unaware is the library's profile without a rule for lenders.
func unaware(t testing.TB) *director.Profile {
	return muxtest.LibraryProfile(t, "  \"*.lender_id\": book\n", "")
}

// watched is a mux of two libraries, the second called beta.io, that is watched. The libraries answer with reply.
func watched(t *testing.T, p *director.Profile, reply string) (*drift.Watch, func(method string, request []byte), *[]drift.Finding) {
	t.Helper()
	told := &[]drift.Finding{}
	w, err := drift.New(drift.Config{
		Profile: p, Schema: muxtest.Library, Backends: []string{"", "beta.io"},
		Found: func(f drift.Finding) { *told = append(*told, f) }, // one call at a time
	})
	require.NoError(t, err)
	echo := muxtest.Unary(func(_ context.Context, _ string, _ *codec.Frame) (*codec.Frame, error) {
		return muxtest.Bytes("Book", reply), nil
	})
	cc := muxtest.Mux(t, director.Config{Profile: p, Schema: muxtest.Library, Tracer: w}, echo, echo)
	return w, func(method string, request []byte) {
		t.Helper()
		require.NoError(t, cc.Invoke(t.Context(), method, codec.NewFrame(request), &codec.Frame{}))
	}, told
}

func bytesOf(message, text string) []byte { return muxtest.Bytes(message, text).Bytes() }

func TestUnknownFieldsAreReportedOnceAndCounted(t *testing.T) {
	w, call, told := watched(t, unaware(t), `id: "1" quotes {id: "2"}`)
	get := slices.Concat(bytesOf("GetRequest", `book_id: "1" lender_id: "7"`), []byte{0xf8, 0x07, 1}) // field 127
	for range 3 {
		call(muxtest.Method("Get"), get)
	}
	call(muxtest.Method("Burn"), nil)
	call(muxtest.Method("Put"), bytesOf("PutRequest", `book {title: "harmless beta.io__1"}`))
	call("/other.API/Get", nil) // of a service that no schema describes

	want := []drift.Finding{
		{Kind: drift.ID, Where: "GetRequest.lender_id", Method: muxtest.Method("Get"), Count: 3,
			Suggest: "rules: {fields: {GetRequest.lender_id: book}}, or, if it holds nothing of one backend, rules: {harmless: {GetRequest: [lender_id]}}"},
		{Kind: drift.Method, Where: muxtest.Method("Burn"), Method: muxtest.Method("Burn"), Count: 1,
			Suggest: "proto: [api.proto], with a newer file that has this method; until then its calls pass to the primary unchanged"},
		{Kind: drift.Field, Where: "GetRequest field 127", Method: muxtest.Method("Get"), Count: 3,
			Suggest: "proto: [api.proto], with a newer file in which library.v1.GetRequest has field 127; until then the field passes unchanged"},
	}
	assert.Equal(t, want, w.Findings())
	assert.Len(t, *told, 3)
}

func TestAValueThatBeginsLikeANameIsTakenForOne(t *testing.T) {
	p := unaware(t)
	p.Harmless["Page"] = nil
	delete(p.Harmless, "Book")
	w, call, _ := watched(t, p, `id: "1" title: "a title"`)
	call(muxtest.Method("Get"), bytesOf("GetRequest", `book_id: "1"`))
	assert.Empty(t, w.Findings(), "title is not called like an id")
	call(muxtest.Method("Put"), bytesOf("PutRequest", `book {labels {key: "a" value: "beta.io__9"}}`))
	call(muxtest.Method("Get"), slices.Concat(bytesOf("GetRequest", `book_id: "1"`), []byte("\xfa\x07\x0abeta.io__9")))
	var where []string
	for _, f := range w.Findings() {
		where = append(where, f.Where+" "+f.Suggest[:30])
	}
	assert.Equal(t, []string{"Book.labels rules: {fields: {Book.labels: ", "GetRequest field 127 proto: [api.proto], with a new"}, where)
	assert.Contains(t, w.Findings()[1].Suggest, "though it seems to hold an id, with beta.io__ before it")
}

func TestASuggestedRuleMendsIt(t *testing.T) {
	p := unaware(t)
	w, call, _ := watched(t, p, "")
	call(muxtest.Method("Get"), bytesOf("GetRequest", `lender_id: "7"`))
	call(muxtest.Method("Burn"), nil)
	require.Len(t, w.Findings(), 2)
	rules, err := profile.ParseRules([]byte("fields: {GetRequest.lender_id: book}"))
	require.NoError(t, err)
	mended, err := p.Extend(rules)
	require.NoError(t, err)
	commit, err := w.Stage(drift.Config{Profile: mended, Schema: muxtest.Library, Backends: []string{"", "beta.io"}})
	require.NoError(t, err)
	commit()
	call(muxtest.Method("Get"), bytesOf("GetRequest", `lender_id: "7"`))
	require.Len(t, w.Findings(), 1, "what was found before is forgotten when there is a rule")
	assert.Equal(t, drift.Method, w.Findings()[0].Kind)
}

func TestFieldsLikeIdsWithoutARuleAreUncovered(t *testing.T) {
	found, err := drift.Uncovered(muxtest.LibraryProfile(t), muxtest.Library)
	require.NoError(t, err)
	assert.Empty(t, found)
	found, err = drift.Uncovered(unaware(t), muxtest.Library)
	require.NoError(t, err)
	var where []string
	for _, f := range found {
		where = append(where, f.Where)
	}
	assert.ElementsMatch(t, []string{"GetRequest.lender_id", "ListRequest.lender_id"}, where)
}

func TestALongStreamOfCallsIsLookedAtNowAndThenOnly(t *testing.T) {
	w, call, _ := watched(t, unaware(t), "")
	const calls = 500
	for range calls {
		call(muxtest.Method("Get"), bytesOf("GetRequest", `lender_id: "7"`))
	}
	require.Len(t, w.Findings(), 1)
	n := w.Findings()[0].Count
	assert.GreaterOrEqual(t, n, uint64(32), "the first ones")
	assert.Less(t, n, uint64(calls/2))
}

// A truncated or malformed message yields no finding.
func TestBrokenMessagesAreNotLookedInto(t *testing.T) {
	w, call, _ := watched(t, unaware(t), "")
	for _, b := range []string{"\x1a\xff", "\xff", "\x1a\x02\x0a"} {
		func() {
			defer func() { assert.Nil(t, recover()) }()
			_, leg := w.Begin(t.Context(), director.LegInfo{Method: muxtest.Method("Get"), Client: true})
			leg.Request(codec.NewFrame([]byte(b)))
		}()
	}
	call(muxtest.Method("Get"), nil)
	for _, f := range w.Findings() {
		assert.Equal(t, drift.Field, f.Kind)
	}
}

func TestIDWithoutARuleDecidesNothing(t *testing.T) {
	var got []string
	answer := func(name string) muxtest.Handler {
		return muxtest.Unary(func(_ context.Context, _ string, request *codec.Frame) (*codec.Frame, error) {
			got = append(got, name+": "+muxtest.Text("GetRequest", request))
			return codec.NewFrame(nil), nil
		})
	}
	cc := muxtest.Mux(t, director.Config{Profile: unaware(t), Schema: muxtest.Library}, answer("one"), answer("two"))
	for _, request := range []string{`book_id: "beta.io__1" lender_id: "beta.io__2"`, `lender_id: "beta.io__2"`} {
		require.NoError(t, cc.Invoke(t.Context(), muxtest.Method("Get"), muxtest.Frame(t, "GetRequest", request), &codec.Frame{}))
	}
	assert.Equal(t, []string{`two: book_id: "1" lender_id: "beta.io__2"`, `one: lender_id: "beta.io__2"`}, got,
		"to the owner by the mapped id; else to the primary")
}
