package director_test

import (
	"context"
	"path"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// bookcase is a backend that lists books. It has no stream and no item that a client asks for.
type bookcase struct {
	grpc.ClientConnInterface
	books string
	asked int // for an item
}

func (s *bookcase) Invoke(_ context.Context, method string, _, reply any, _ ...grpc.CallOption) error {
	if path.Base(method) == "List" {
		return codec.Decode(reply, muxtest.Bytes("ListResponse", s.books))
	}
	s.asked++
	return codec.Decode(reply, &codec.Frame{})
}

// nativeDirector returns a director of backends that have caches, the primary first and then beta.io, with native names.
func nativeDirector[C grpc.ClientConnInterface](t *testing.T, of *director.Profile, conns []C) *director.Director {
	cfg := director.Config{Profile: of, Schema: muxtest.Library, NativeNames: true}
	for i, conn := range conns {
		known := backend.Open("", backend.File{})
		require.NoError(t, known.Use(backend.Config{Next: codec.CallerOf(conn), Schema: cfg.Schema, Package: muxtest.Package, Spec: of.Known}))
		cfg.Backends = append(cfg.Backends, director.Backend{Name: []string{"", "beta.io"}[i], Conn: known, Known: known})
	}
	d := muxtest.New(t, cfg)
	t.Cleanup(d.Close)
	return d
}

func TestAnItemThatIsGoneStaysWithItsBackend(t *testing.T) {
	shelves := []*bookcase{{books: `books {id: "a"}`}, {books: `books {id: "b"} books {id: "c"}`}}
	d := nativeDirector(t, muxtest.LibraryProfile(t), shelves)
	list := func() {
		require.NoError(t, d.Invoke(t.Context(), muxtest.Method("List"), &codec.Frame{}, &codec.Frame{}))
	}
	goesTo := func(id string, want int) {
		t.Helper()
		before := shelves[want].asked
		require.NoError(t, d.Invoke(t.Context(), muxtest.Method("Get"), muxtest.Bytes("GetRequest", `book_id: "`+id+`"`), &codec.Frame{}))
		assert.Equal(t, before+1, shelves[want].asked)
	}
	list()
	goesTo("b", 1)
	shelves[1].books = `books {id: "c"}`
	list()
	goesTo("b", 1)
	goesTo("d", 0)
	shelves[0].books = `books {id: "b"}`
	list()
	goesTo("b", 0)
}
