package director_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// browsing is a server with n books, which it numbers, and whose pages have at most
// most of them. Its token is the number to go on with.
func browsing(n, most int) muxtest.Handler {
	return muxtest.Unary(func(_ context.Context, _ string, request *codec.Frame) (*codec.Frame, error) {
		var token string
		size := 0
		for _, field := range strings.Fields(muxtest.Text("BrowseRequest", request)) {
			// If a field occurs twice, the last one counts.
			if v, ok := strings.CutPrefix(field, `"`); ok {
				token = strings.TrimSuffix(v, `"`)
			} else if i, err := strconv.Atoi(field); err == nil {
				size = i
			}
		}
		from := 0
		if token != "" {
			var err error
			if from, err = strconv.Atoi(token); err != nil || from > n {
				return nil, status.Errorf(codes.Aborted, "bad token %q", token)
			}
		}
		if size == 0 || size > most {
			size = most
		}
		var b strings.Builder
		to := min(from+size, n)
		for i := from; i < to; i++ {
			fmt.Fprintf(&b, "books {id: '%d'} ", i)
		}
		if to < n {
			fmt.Fprintf(&b, "next: '%d'", to)
		}
		return muxtest.Bytes("BrowseResponse", b.String()), nil
	})
}

func TestPagesGoThroughAllBackendsInTurn(t *testing.T) {
	for _, c := range []struct {
		name  string
		have  [3]int
		most  int
		size  int
		pages string // the number of items on each
	}{
		{"one page of all", [3]int{2, 0, 3}, 100, 0, "5"},
		{"backends with pages of their own", [3]int{5, 3, 1}, 2, 0, "9"},
		{"pages across backends", [3]int{3, 4, 2}, 100, 2, "2 2 2 2 1"},
		{"a page ends where a backend does", [3]int{2, 2, 2}, 100, 2, "2 2 2"},
		{"an empty backend in between", [3]int{2, 0, 1}, 100, 2, "2 1"},
		{"a backend whose pages are shorter than asked for", [3]int{3, 1, 0}, 1, 2, "1 1 2 0"},
		{"nothing at all", [3]int{}, 100, 2, "0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cc := muxtest.Mux(t, director.Config{Profile: muxtest.LibraryProfile(t)},
				browsing(c.have[0], c.most), browsing(c.have[1], c.most), browsing(c.have[2], c.most))
			var pages, got, want []string
			token := ""
			for {
				reply, err := call(t, cc, "Browse", "BrowseRequest", fmt.Sprintf("token: %q size: %d", token, c.size))
				require.NoError(t, err)
				text := muxtest.Text("BrowseResponse", reply)
				pages = append(pages, fmt.Sprint(strings.Count(text, "books {")))
				books, next, _ := strings.Cut(text, "next: ")
				for _, book := range strings.Split(books, "books {id: ") {
					if id, _, ok := strings.Cut(strings.TrimPrefix(book, `"`), `"`); ok {
						got = append(got, id)
					}
				}
				if token, _ = strconv.Unquote(next); token == "" {
					break
				}
			}
			for i, prefix := range []string{"", "beta.io__", "gamma.io__"} {
				for n := range c.have[i] {
					want = append(want, fmt.Sprint(prefix, n))
				}
			}
			assert.Equal(t, want, got, "each item once, in backend order")
			assert.Equal(t, c.pages, strings.Join(pages, " "))
		})
	}
}

func TestAnUnknownPageTokenGoesToThePrimary(t *testing.T) {
	cc := muxtest.Mux(t, director.Config{Profile: muxtest.LibraryProfile(t)}, browsing(3, 2), browsing(3, 2))
	for _, token := range []string{"nonsense", "omega.io/1"} {
		_, err := call(t, cc, "Browse", "BrowseRequest", fmt.Sprintf("token: %q", token))
		assert.Equal(t, codes.Aborted, status.Code(err))
		assert.Equal(t, fmt.Sprintf("bad token %q", token), status.Convert(err).Message())
	}
}

func TestMetadataChooses(t *testing.T) {
	profile := muxtest.LibraryProfile(t, `- backend: labels["backend"]`, `- shelf: metadata["x-shelf"]`)
	cc := muxtest.Mux(t, director.Config{Profile: profile, Backends: []director.Backend{
		{}, {Name: "beta.io", Maps: map[string]map[string]string{"shelves": {"rare": "rare"}}},
	}}, says(`title: "primary"`), says(`title: "beta"`))
	for shelf, want := range map[string]string{"": "primary", "rare": "beta", "other": "primary"} {
		ctx := t.Context()
		if shelf != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "x-shelf", shelf)
		}
		reply := &codec.Frame{}
		require.NoError(t, cc.Invoke(ctx, muxtest.Method("Put"), &codec.Frame{}, reply))
		muxtest.EqualProto(t, "Book", fmt.Sprintf("title: %q", want), reply)
	}
	_, err := director.New(director.Config{
		Profile: muxtest.LibraryProfile(t, `- backend: labels["backend"]`, `- backend: metadata["X-Shelf"]`),
		Schema:  muxtest.Library, Backends: make([]director.Backend, 1),
	})
	assert.EqualError(t, err, `21:5: methods.Put.choose: metadata["X-Shelf"]: want a key of the metadata in quotes and lower case, as in metadata["backend"]`)
}

// A joined page has the token of one backend, which all of them get.
func TestJoinedPagesAreAnAssumption(t *testing.T) {
	const pages, concat = "all: pages, pages: {token: token, size: size, next: next, items: books}", "all: concat, winners: {next: first}"
	cfg := director.Config{Profile: muxtest.LibraryProfile(t, pages, concat), Schema: muxtest.Library, Backends: []director.Backend{{}, {Name: "b"}}}
	d := muxtest.New(t, cfg)
	require.Len(t, d.Assumptions(), 1)
	assert.Contains(t, d.Assumptions()[0], "Browse: the list seems to come in pages, and the pages of all backends are joined: the next of one backend, which the client sends back as token, goes to all of them")

	cfg.Profile = muxtest.LibraryProfile(t)
	require.NoError(t, d.Reload(cfg))
	assert.Empty(t, d.Assumptions(), "the rule that is recommended is one")

	cfg.Profile, cfg.Backends = muxtest.LibraryProfile(t, pages, concat), cfg.Backends[:1]
	require.NoError(t, d.Reload(cfg))
	assert.Empty(t, d.Assumptions(), "of one backend nothing is joined")
}
