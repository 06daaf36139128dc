package director_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/director/dial"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo answers Get and Put with a book that says what arrived, and counts.
func echo(calls *atomic.Int32) muxtest.Handler {
	return muxtest.Unary(func(_ context.Context, method string, request *codec.Frame) (*codec.Frame, error) {
		if method != muxtest.Method("List") { // the director lists to find the owner of a name
			calls.Add(1)
		}
		switch method {
		case muxtest.Method("Get"):
			return muxtest.Bytes("Book", fmt.Sprintf("id: '7f' title: %q", muxtest.Text("GetRequest", request))), nil
		case muxtest.Method("Put"):
			return muxtest.Bytes("Book", fmt.Sprintf("id: '7f' title: %q", muxtest.Text("PutRequest", request))), nil
		}
		return nil, status.Errorf(codes.Unimplemented, "unknown method %s", method)
	})
}

func call(t testing.TB, cc grpc.ClientConnInterface, method, request, text string, opts ...grpc.CallOption) (*codec.Frame, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	reply := &codec.Frame{}
	err := cc.Invoke(ctx, muxtest.Method(method), muxtest.Frame(t, request, text), reply, opts...)
	return reply, err
}

func TestACallGoesToTheOwnerOfTheNameInIt(t *testing.T) {
	shelves := map[string]map[string]string{"shelves": {"rare": "", "maps": "atlas"}}
	var calls [3]atomic.Int32
	cc := muxtest.Mux(t, director.Config{
		Profile:  muxtest.LibraryProfile(t),
		Backends: []director.Backend{{}, {Name: "beta.io", Maps: shelves}, {Name: "gamma.io"}},
	}, echo(&calls[0]), echo(&calls[1]), echo(&calls[2]))

	for _, c := range []struct {
		name, method, request string
		want                  string // the reply
		backend               int    // negative: none
		code                  codes.Code
		message               string
	}{
		{name: "a bare id is the primary's", method: "Get", request: `book_id: "12"`,
			want: `id: "7f" title: "book_id: \"12\""`},
		{name: "a prefix names the owner, and is translated both ways", method: "Get", request: `book_id: "beta.io__12"`,
			want: `id: "beta.io__7f" title: "book_id: \"12\""`, backend: 1},
		{name: "two names of one owner", method: "Get", request: `book_id: "gamma.io__12" lender_id: "gamma.io__a"`,
			want: `id: "gamma.io__7f" title: "book_id: \"12\" lender_id: \"a\""`, backend: 2},
		{name: "no name at all goes to the primary", method: "Get", request: ``,
			want: `id: "7f"`},
		{name: "an empty name says nothing", method: "Get", request: `book_id: "gamma.io__12" lender_id: ""`,
			want: `id: "gamma.io__7f" title: "book_id: \"12\""`, backend: 2},
		{name: "an unknown prefix is nobody's", method: "Get", request: `book_id: "omega.io__12"`,
			backend: -1, code: codes.NotFound, message: `criproxy: Get: book "omega.io__12": no backend has that prefix; the backends are the primary (which has no name), beta.io, gamma.io`},
		{name: "names of two owners", method: "Get", request: `book_id: "beta.io__12" lender_id: "gamma.io__a"`,
			backend: -1, code: codes.InvalidArgument, message: `criproxy: Get: book "beta.io__12" and book "gamma.io__a" belong to different backends, and one call can only go to one`},
		{name: "a name of an owner and one of the primary", method: "Get", request: `book_id: "beta.io__12" lender_id: "a"`,
			backend: -1, code: codes.InvalidArgument, message: `criproxy: Get: book "beta.io__12" and book "a" belong to different backends, and one call can only go to one`},

		{name: "a mapped name chooses, and is translated", method: "Put", request: `shelf: "maps"`,
			want: `id: "beta.io__7f" title: "shelf: \"atlas\""`, backend: 1},
		{name: "a mapped name can be the default over there", method: "Put", request: `shelf: "rare"`,
			want: `id: "beta.io__7f" title: "shelf: \"\""`, backend: 1},
		{name: "a name that is in no map says nothing", method: "Put", request: `shelf: "other"`,
			want: `id: "7f" title: "shelf: \"other\""`},
		{name: "the name of a backend chooses", method: "Put", request: `labels {key: "backend" value: "gamma.io"}`,
			want: `id: "gamma.io__7f" title: "labels[\"backend\"]: \"gamma.io\""`, backend: 2},
		{name: "a primary without a name has one", method: "Put", request: `labels {key: "backend" value: "primary"}`,
			want: `id: "7f" title: "labels[\"backend\"]: \"primary\""`},
		{name: "choosers are asked in order", method: "Put", request: `shelf: "maps" labels {key: "backend" value: "gamma.io"}`,
			want: `id: "beta.io__7f" title: "shelf: \"atlas\" labels[\"backend\"]: \"gamma.io\""`, backend: 1},
		{name: "a name goes before choosers", method: "Put", request: `book {id: "gamma.io__1"} shelf: "maps"`,
			want: `id: "gamma.io__7f" title: "book {id: \"1\"} shelf: \"maps\""`, backend: 2},
		{name: "a backend that is none", method: "Put", request: `labels {key: "backend" value: "bets.io"}`,
			backend: -1, code: codes.InvalidArgument, message: `criproxy: Put: labels["backend"]: unknown backend "bets.io"; the backends are the primary (which has no name), beta.io, gamma.io`},
		{name: "an empty choice is none", method: "Put", request: `labels {key: "backend" value: ""}`,
			want: `id: "7f" title: "labels[\"backend\"]: \"\""`},
		{name: "a choice that contradicts a bare name", method: "Put", request: `book {id: "1"} labels {key: "backend" value: "gamma.io"}`,
			backend: -1, code: codes.InvalidArgument, message: `criproxy: Put: the request is for backend gamma.io, but book "1" is the primary's`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var before [3]int32
			for i := range calls {
				before[i] = calls[i].Load()
			}
			got, err := call(t, cc, c.method, c.method+"Request", c.request)
			if c.code != codes.OK {
				assert.Equal(t, c.code, status.Code(err))
				assert.Equal(t, c.message, status.Convert(err).Message())
			} else {
				require.NoError(t, err)
				assert.Equal(t, c.want, muxtest.Text("Book", got))
			}
			for i := range calls {
				want := before[i]
				if i == c.backend {
					want++
				}
				assert.Equal(t, want, calls[i].Load(), "calls of backend %d", i)
			}
		})
	}
}

// shelf answers List with books, after a signal if there is one.
func shelf(books string) muxtest.Handler {
	return muxtest.Unary(func(context.Context, string, *codec.Frame) (*codec.Frame, error) {
		return muxtest.Bytes("ListResponse", books), nil
	})
}

func fails(code codes.Code, message string) muxtest.Handler {
	return muxtest.Unary(func(context.Context, string, *codec.Frame) (*codec.Frame, error) {
		return nil, status.Error(code, message)
	})
}

func TestAListMergesInBackendOrder(t *testing.T) {
	second := make(chan struct{})
	first := muxtest.Unary(func(context.Context, string, *codec.Frame) (*codec.Frame, error) {
		<-second // the primary answers last, but its part comes first
		return muxtest.Bytes("ListResponse", `books {id: "1"} books {id: "2" quotes {id: "3"}}`), nil
	})
	cc := muxtest.Mux(t, director.Config{Profile: muxtest.LibraryProfile(t)}, first,
		muxtest.Unary(func(context.Context, string, *codec.Frame) (*codec.Frame, error) {
			defer close(second)
			return muxtest.Bytes("ListResponse", `books {id: "1" title: "one"} books {title: "nameless"}`), nil
		}),
		shelf(`books {id: "9" quotes {id: "8"}}`))
	got, err := call(t, cc, "List", "ListRequest", "")
	require.NoError(t, err)
	muxtest.EqualProto(t, "ListResponse", `
		books {id: "1"} books {id: "2" quotes {id: "3"}}
		books {id: "beta.io__1" title: "one"} books {title: "nameless"}
		books {id: "gamma.io__9" quotes {id: "gamma.io__8"}}`, got)
}

// asked asserts that the request of a list is want, in which an empty field stands for a missing one.
func asked(t *testing.T, want string, h muxtest.Handler) muxtest.Handler {
	return func(method string, stream grpc.ServerStream) error {
		return h(method, &asking{stream, func(request *codec.Frame) {
			assert.Equal(t, want, strings.TrimSpace(strings.ReplaceAll(muxtest.Text("ListRequest", request), `book_id: ""`, "")))
		}})
	}
}

// asking shows each request of a stream.
type asking struct {
	grpc.ServerStream
	show func(*codec.Frame)
}

func (s *asking) RecvMsg(m any) error {
	f := &codec.Frame{}
	if err := s.ServerStream.RecvMsg(f); err != nil {
		return err
	}
	s.show(f)
	return codec.Decode(m, f)
}

func TestAFilterNarrowsAListToItsOwner(t *testing.T) {
	one := shelf(`books {id: "1"}`)
	never := muxtest.Unary(func(context.Context, string, *codec.Frame) (*codec.Frame, error) {
		t.Error("this backend should not have been asked")
		return &codec.Frame{}, nil
	})
	for _, c := range []struct {
		request, want     string
		primary, secondry muxtest.Handler
	}{
		{`book_id: "1"`, `books {id: "1"}`, one, never},
		{`book_id: "beta.io__1"`, `books {id: "beta.io__1"}`, never, one},
		{`book_id: "omega.io__1"`, `books {id: "omega.io__1"}`, shelf(`books {id: "omega.io__1"}`), never}, // the primary may be a multiplexer itself
		{`book_id: "beta.io__1" lender_id: "1"`, ``, never, never},
		{`book_id: ""`, `books {id: "1"} books {id: "beta.io__1"}`, one, one},
		{`book_id: "beta.io__"`, `books {id: "beta.io__1"}`, never, one},
		{`book_id: "beta.i"`, `books {id: "1"} books {id: "beta.io__1"}`, asked(t, `book_id: "beta.i"`, one), asked(t, ``, one)},
		{`book_id: "beta.io_" lender_id: "beta.io__7"`, `books {id: "beta.io__1"}`, never, asked(t, `lender_id: "7"`, one)},
		{`book_id: "beta.i" lender_id: "1"`, `books {id: "1"}`, one, never},
	} {
		cc := muxtest.Mux(t, director.Config{Profile: muxtest.LibraryProfile(t)}, c.primary, c.secondry)
		got, err := call(t, cc, "List", "ListRequest", c.request)
		require.NoError(t, err, c.request)
		muxtest.EqualProto(t, "ListResponse", c.want, got)
	}
}

func TestAListFailsWithTheStatusOfTheBackendThatFails(t *testing.T) {
	hung := muxtest.Unary(func(ctx context.Context, _ string, _ *codec.Frame) (*codec.Frame, error) {
		<-ctx.Done() // the director must cancel the call, or the test never ends
		return nil, ctx.Err()
	})
	cc := muxtest.Mux(t, director.Config{Profile: muxtest.LibraryProfile(t)},
		hung, fails(codes.DataLoss, "the shelf has burnt"), hung)
	_, err := call(t, cc, "List", "ListRequest", "")
	assert.Equal(t, codes.DataLoss, status.Code(err))
	assert.Equal(t, "the shelf has burnt", status.Convert(err).Message(), "verbatim")
}

func TestABackendWithoutTheMethodMayBeSkipped(t *testing.T) {
	lacks := fails(codes.Unimplemented, "unknown method Tidy")
	tidy := muxtest.Unary(func(context.Context, string, *codec.Frame) (*codec.Frame, error) { return &codec.Frame{}, nil })
	profile := muxtest.LibraryProfile(t)

	_, err := call(t, muxtest.Mux(t, director.Config{Profile: profile}, tidy, lacks), "Tidy", "TidyRequest", "")
	assert.NoError(t, err)
	_, err = call(t, muxtest.Mux(t, director.Config{Profile: profile}, lacks, tidy), "Tidy", "TidyRequest", "")
	assert.NoError(t, err)
	_, err = call(t, muxtest.Mux(t, director.Config{Profile: profile}, lacks, lacks), "Tidy", "TidyRequest", "")
	assert.Equal(t, codes.Unimplemented, status.Code(err), "no backend has the method")
	_, err = call(t, muxtest.Mux(t, director.Config{Profile: profile}, lacks, fails(codes.Aborted, "no")), "Tidy", "TidyRequest", "")
	assert.Equal(t, codes.Aborted, status.Code(err))
	_, err = call(t, muxtest.Mux(t, director.Config{Profile: profile}, lacks, shelf("")), "List", "ListRequest", "")
	assert.Equal(t, codes.Unimplemented, status.Code(err), "a list may not be short of a backend")
}

func TestABackendThatIsDownIsNamed(t *testing.T) {
	dir := muxtest.Dir(t)
	up := muxtest.Backend(t, dir+"/up.sock", "", shelf(`books {id: "1"}`))
	down, err := dial.New(dial.Config{GRPC: muxtest.OverGRPC, Name: "beta.io", Address: dir + "/down.sock"})
	require.NoError(t, err)
	defer down.Close()
	d := muxtest.New(t, director.Config{
		Profile: muxtest.LibraryProfile(t), Schema: muxtest.Library,
		Backends: []director.Backend{up, {Name: "beta.io", Conn: down}},
	})
	cc := muxtest.Connect(t, muxtest.ServeDirector(t, dir+"/mux.sock", d))

	for _, request := range []string{"", `book_id: "beta.io__1"`} {
		_, err = call(t, cc, "List", "ListRequest", request)
		assert.Equal(t, codes.Unavailable, status.Code(err))
		assert.Equal(t, "criproxy: backend beta.io cannot be reached at "+dir+"/down.sock: connect: no such file or directory",
			status.Convert(err).Message(), "the path once")
	}
	_, err = call(t, cc, "Get", "GetRequest", `book_id: "1"`)
	assert.NoError(t, err, "the primary's objects are not concerned")

	muxtest.Serve(t, dir+"/down.sock", shelf(`books {id: "2"}`))
	require.Eventually(t, func() bool {
		got, err := call(t, cc, "List", "ListRequest", "")
		return err == nil && muxtest.Text("ListResponse", got) == `books {id: "1"} books {id: "beta.io__2"}`
	}, 10*time.Second, 20*time.Millisecond, "it reconnects by itself")
}

func TestAMergedListOverTheLimitSaysSo(t *testing.T) {
	big := shelf(fmt.Sprintf("books {title: '%01000d'}", 0))
	cc := muxtest.Mux(t, director.Config{Profile: muxtest.LibraryProfile(t), MaxMessage: 1500}, big, big)
	_, err := call(t, cc, "List", "ListRequest", "")
	assert.Equal(t, codes.ResourceExhausted, status.Code(err))
	assert.Equal(t, "criproxy: List: the merged reply of 2 backends is 2012 bytes, more than the limit of 1500: ask for it as a stream, or with a filter", status.Convert(err).Message())

	cc = muxtest.Mux(t, director.Config{Profile: muxtest.LibraryProfile(t), MaxMessage: 900}, big, big)
	_, err = call(t, cc, "List", "ListRequest", "")
	assert.Equal(t, codes.ResourceExhausted, status.Code(err))
	assert.Contains(t, err.Error(), "is over the limit of 900 bytes")
}

func TestAMalformedMessageIsAnErrorThatSaysWhere(t *testing.T) {
	cc := muxtest.Mux(t, director.Config{Profile: muxtest.LibraryProfile(t)}, shelf(""),
		muxtest.Unary(func(context.Context, string, *codec.Frame) (*codec.Frame, error) {
			return codec.NewFrame([]byte("\x0a\x09x")), nil
		}))
	err := cc.Invoke(t.Context(), muxtest.Method("Get"), codec.NewFrame([]byte("\x0a")), &codec.Frame{})
	assert.EqualError(t, err, "rpc error: code = Internal desc = criproxy: Get: malformed protobuf at byte 1: bad length")
	_, err = call(t, cc, "List", "ListRequest", "")
	assert.EqualError(t, err, "rpc error: code = Internal desc = criproxy: List: reply of backend beta.io: malformed protobuf at byte 1: length 9, but 1 bytes are left")
}

func TestBadConfigurationIsRefusedWithAllItsMistakes(t *testing.T) {
	profile := muxtest.LibraryProfile(t)
	conn := grpc.ClientConnInterface(nil)
	for _, c := range []struct {
		name string
		cfg  director.Config
		want string
	}{
		{"nothing", director.Config{}, "backends: want at least one"},
		{"names", director.Config{Backends: []director.Backend{{Conn: conn}, {}, {Name: "a"}, {Name: "a"}, {Name: "b/c"}, {Name: "unix://d"}, {Name: "e__f"}, {Name: "g h"}, {Name: "i_"}}},
			`backends[1]: has no name; only the first backend, the primary, may have none
backends[3]: the name "a" is already used by backends[2]
backends[4]: backend name "b/c": contains "/", which separates a name from what follows it; leave it out
backends[5]: backend name "unix://d": contains "://", which separates a name from what follows it; leave it out
backends[6]: backend name "e__f": contains "__", which separates a name from what follows it; leave it out
backends[7]: backend name "g h": contains white space or one of , : @ "; use letters, digits, dots and single underscores
backends[8]: backend name "i_": ends in an underscore, which runs into the separator "__"; leave it out`},
		{"a handler mapped twice", director.Config{Profile: profile, Schema: muxtest.Library, Backends: []director.Backend{
			{Name: "a", Maps: map[string]map[string]string{"shelves": {"x": "y"}}},
			{Name: "b", Maps: map[string]map[string]string{"shelves": {"x": "z"}}}}},
			`backend b: shelves "x" is already mapped to backend a`},
		{"fields", director.Config{Profile: muxtest.LibraryProfile(t, "Book.id", "Book.idd", `"*.lender_id"`, `"*.lener_id"`), Schema: muxtest.Library, Backends: make([]director.Backend, 1)},
			"9:3: fields.*.lener_id: no message has a string field of that name (did you mean \"lender_id\"?)\n7:3: fields.Book.idd: no such field (did you mean \"id\"?)"},
		{"methods", director.Config{Profile: muxtest.LibraryProfile(t, "List|Stream", "List|Steam", "- shelf: shelf", "- shelf: shef", "Tidy:", "Get:"), Schema: muxtest.Library, Backends: make([]director.Backend, 1)},
			`26:3: methods.Get.winners: each backend replies with a value of id, title, colour, and the joined reply holds only one: say whose, as in winners: {id: primary}; first, last and, for counts, sum are also possible
21:5: methods.Put.choose: path shef: library.v1.PutRequest has no field "shef" (did you mean "shelf"?)
24:3: methods.List|Steam: no method is called "Steam" (did you mean "Stream"?)`},
		{"a stream to all", director.Config{Profile: muxtest.LibraryProfile(t, "Tidy:", "Upload:"), Schema: muxtest.Library, Backends: make([]director.Backend, 1)},
			"26:12: methods.Upload.all: the client sends a stream, which can go to one backend only"},
		{"endless", director.Config{Profile: muxtest.LibraryProfile(t, "List|Stream: {all: concat}", "List: {all: endless}\n  Stream: {all: endless, resync: gossip}"), Schema: muxtest.Library, Backends: make([]director.Backend, 1)},
			"24:10: methods.List.all: is \"endless\", which is for streams\n25:26: methods.Stream.resync: there is no code called \"gossip\""},
		{"mirror", director.Config{Profile: muxtest.LibraryProfile(t, "List|Stream: {all: concat}", "List: {all: concat}\n  Stream: {all: mirror}"), Schema: muxtest.Library, Backends: make([]director.Backend, 1)},
			"25:12: methods.Stream.all: is \"mirror\", which is for methods with one request and one reply"},
		{"another package", director.Config{Profile: muxtest.LibraryProfile(t, "library.v1", "library.v2"), Schema: muxtest.Library, Backends: make([]director.Backend, 1)},
			"2:5: versions[0].package: the schema has no service in package library.v2; it has library.v1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := director.New(c.cfg)
			require.Error(t, err)
			assert.Equal(t, c.want, err.Error())
		})
	}
}

func TestBadProfilesAreRefusedWithAllTheirMistakes(t *testing.T) {
	_, err := director.ParseProfile([]byte(`
names:
  backend: {front: "{backend}/{name}", bare: anyone}
  a: {front: "{name}", bare: nobody}
  b: {front: "x", map: y}
edits:
  a: {replies: x}
fields:
  A.b: c
methods:
  "[": {all: first, missing: ignore, choose: [d: path], resync: x}
  Tidy: {all: mirror, missing: skip}
`))
	assert.EqualError(t, err, `3:3: names.backend: this kind is built in, choose another name
4:7: names.a.front: "{name}": want "{backend}", a separator and "{name}"
4:24: names.a.bare: "nobody": want "primary" or "anyone"
5:3: names.b: has both front and map, want one
7:3: edits.a: is a kind of name already
9:3: fields.A.b: "c" is neither under names nor under edits
11:3: methods.[: invalid pattern "[": want one such as List*
11:21: methods.[.missing: "ignore": want "fail" or "skip"
11:38: methods.[.choose: "d" is neither "backend", "known", "told" nor under names
11:57: methods.[.resync: is for all: endless
12:23: methods.Tidy.missing: is not for all: mirror, which leaves out a backend that lacks the method
versions: want at least one package`)

	_, err = director.ParseProfile([]byte("versons: []\nmethods: {Put: {choose: [[a]]}}"))
	assert.EqualError(t, err, `1:1: versons: unknown key (did you mean "versions"?)
2:26: methods.Put.choose[0]: want one "kind: path", such as "handler: runtime_handler"`)
}
