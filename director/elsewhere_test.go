package director_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// catalog is a server of a service that no schema describes. It answers every method with the book that it has, and counts
// its calls.
func catalog(calls *atomic.Int32, has, refuses string) muxtest.Handler {
	return muxtest.Unary(func(ctx context.Context, _ string, request *codec.Frame) (*codec.Frame, error) {
		calls.Add(1)
		if err := grpc.SetTrailer(ctx, metadata.Pairs("catalog-of", has)); err != nil {
			return nil, err
		}
		if md, _ := metadata.FromIncomingContext(ctx); len(md.Get("shelf")) != 1 {
			return nil, status.Error(codes.InvalidArgument, "which shelf?")
		}
		if string(request.Bytes()) != has {
			return nil, status.Error(codes.NotFound, refuses)
		}
		return codec.NewFrame([]byte("here is " + has)), nil
	})
}

func TestWhatThePrimaryLacksIsLookedUpElsewhere(t *testing.T) {
	profile := muxtest.LibraryProfile(t)
	profile.Elsewhere = []string{"another.Catalog/Get"}
	var calls [3]atomic.Int32
	cc := muxtest.Mux(t, director.Config{Profile: profile},
		catalog(&calls[0], "a", "not in the first"), catalog(&calls[1], "b", "not in the second"), catalog(&calls[2], "c", "not in the third"))
	var trailer metadata.MD
	ask := func(method, book string) (string, error) {
		reply := &codec.Frame{}
		err := cc.Invoke(metadata.AppendToOutgoingContext(t.Context(), "shelf", "k8s"), method, codec.NewFrame([]byte(book)), reply, grpc.Trailer(&trailer))
		return string(reply.Bytes()), err
	}
	for _, test := range []struct {
		book, answer, refusal string
		asked                 [3]int32
		who                   string // answered, by the trailer
	}{
		{"a", "here is a", "", [3]int32{1, 0, 0}, "a"},
		{"b", "here is b", "", [3]int32{1, 1, 0}, "b"},
		{"c", "here is c", "", [3]int32{1, 1, 1}, "c"},
		{"d", "", "not in the first", [3]int32{1, 1, 1}, "a"},
	} {
		for i := range calls {
			calls[i].Store(0)
		}
		answer, err := ask("/another.Catalog/Get", test.book)
		if test.refusal == "" {
			require.NoError(t, err)
		} else {
			assert.Equal(t, status.Error(codes.NotFound, test.refusal).Error(), err.Error())
		}
		assert.Equal(t, test.answer, answer)
		assert.Equal(t, []string{test.who}, trailer["catalog-of"])
		assert.Equal(t, test.asked, [3]int32{calls[0].Load(), calls[1].Load(), calls[2].Load()}, "the backends that were asked for %s", test.book)
	}
	_, err := ask("/another.Catalog/Burn", "b")
	assert.Equal(t, codes.NotFound, status.Code(err), "other methods are the primary's alone")
}
