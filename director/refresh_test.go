package director_test

import (
	"context"
	"path"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// lateBookcase lists its books late.
type lateBookcase struct {
	*bookcase
	by time.Duration
}

func (s *lateBookcase) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if path.Base(method) == "List" {
		select {
		case <-time.After(s.by):
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
	return s.bookcase.Invoke(ctx, method, args, reply, opts...)
}

// A look-up waited for all runtimes, and so for one that hangs. See issue 40.
func TestALookUpTakesTheAnswerOfTheBackendThatHasTheName(t *testing.T) {
	testkit.OnSimulatedClock(t, func(t *testing.T) {
		shelves := []*lateBookcase{{bookcase: &bookcase{books: `books {id: "a"}`}}, {bookcase: &bookcase{books: `books {id: "b"}`}}}
		d := nativeDirector(t, muxtest.LibraryProfile(t), shelves)
		get := func(id string) (time.Duration, error) {
			began := time.Now()
			err := d.Invoke(t.Context(), muxtest.Method("Get"), muxtest.Bytes("GetRequest", `book_id: "`+id+`"`), &codec.Frame{})
			return time.Since(began), err
		}
		require.NoError(t, d.Invoke(t.Context(), muxtest.Method("List"), &codec.Frame{}, &codec.Frame{}))

		shelves[0].by, shelves[1].by = time.Millisecond, time.Second
		shelves[0].books += ` books {id: "new"}`
		took, err := get("new")
		require.NoError(t, err)
		assert.Equal(t, time.Millisecond, took, "it does not wait for the other one")
		assert.Equal(t, 1, shelves[0].asked)

		shelves[0].books += ` books {id: "other"}`
		shelves[1].books += ` books {id: "others"}`
		_, err = get("oth")
		assert.Equal(t, codes.InvalidArgument, status.Code(err), "several ids begin with it: %v", err)

		time.Sleep(time.Second)
		took, err = get("nobodys")
		require.NoError(t, err, "the primary answers")
		assert.Equal(t, time.Second, took, "the other one may have it")
		assert.Equal(t, 2, shelves[0].asked)
	})
}

// ofClient marks the context of a client's call, as a recording does.
type ofClient struct{}

// noting notes of each list whether it was asked for with the context of a client's call.
type noting struct {
	*bookcase
	mu    sync.Mutex
	lists []bool
}

func (s *noting) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if path.Base(method) == "List" {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.lists = append(s.lists, ctx.Value(ofClient{}) != nil)
	}
	return s.bookcase.Invoke(ctx, method, args, reply, opts...)
}

// A list that the choice of a backend needs is made for one call, and recordings show it as a leg of that. A list for look-ups
// is for all calls that wait for it, and so it is criproxy's own.
func TestTheListOfAChoiceIsALegOfItsCall(t *testing.T) {
	testkit.OnSimulatedClock(t, func(t *testing.T) {
		shelves := []*noting{{bookcase: &bookcase{}}, {bookcase: &bookcase{books: `books {id: "b"}`}}}
		d := nativeDirector(t, muxtest.LibraryProfile(t, "- shelf: shelf", "- known: List.title = book.title"), shelves)
		ctx := context.WithValue(t.Context(), ofClient{}, true)
		call := func(method, request, text string) (lists [][]bool) {
			require.NoError(t, d.Invoke(ctx, muxtest.Method(method), muxtest.Bytes(request, text), &codec.Frame{}))
			for _, s := range shelves {
				s.mu.Lock()
				lists = append(lists, s.lists)
				s.lists = nil
				s.mu.Unlock()
			}
			return lists
		}
		none := []bool(nil)
		assert.Equal(t, [][]bool{{true}, {true}}, call("List", "ListRequest", ""))
		assert.Equal(t, [][]bool{none, none}, call("Put", "PutRequest", `book {title: "Tale"}`), "nothing has changed, and the primary gets the book")
		assert.Equal(t, [][]bool{{true}, none}, call("Put", "PutRequest", `book {title: "Saga"}`), "the primary may list it now")
		assert.Equal(t, [][]bool{{false}, {false}}, call("Get", "GetRequest", `book_id: "nobodys"`))
	})
}
