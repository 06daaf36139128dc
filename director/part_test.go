package director_test

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// sends is a server that answers every call with these messages as they are, and ends a
// stream without an error.
func sends(messages ...string) muxtest.Handler {
	return func(_ string, stream grpc.ServerStream) error {
		if err := stream.RecvMsg(&codec.Frame{}); err != nil {
			return err
		}
		for _, m := range messages {
			if err := stream.SendMsg(codec.NewFrame([]byte(m))); err != nil {
				return err
			}
		}
		return nil
	}
}

const (
	goodBooks = "\x0a\x03\x0a\x011"              // books {id: "1"}
	cutOff    = "\x0a\x03\x0a\x011\x0a\x07\x0a"  // the same, and a second book that is cut off
	cutInside = "\x0a\x03\x0a\x051"              // a book whose id is cut off
	badTitle  = "\x0a\x07\x0a\x011\x12\x02a\xff" // books {id: "1" title: "a\xff"}
	badLabel  = "\x0a\x08\x22\x06\x0a\x01\xff\x12\x01b"
	badID     = "\x0a\x05\x0a\x032\xffx"
)

func TestABrokenPartIsItsBackendsErrorNotAList(t *testing.T) {
	for name, broken := range map[string]string{"cut off": cutOff, "cut off inside": cutInside, "half a tag": goodBooks + "\x80"} {
		for place, parts := range map[string][]string{"the primary": {broken, goodBooks}, "beta.io": {goodBooks, broken}} {
			who := strings.TrimPrefix(place, "the ")
			t.Run(name+" of "+who, func(t *testing.T) {
				cc := muxtest.Mux(t, director.Config{Profile: muxtest.LibraryProfile(t)}, sends(parts[0]), sends(parts[1]))
				_, err := call(t, cc, "List", "ListRequest", "")
				assert.Equal(t, codes.Internal, status.Code(err), "%v", err)
				assert.Contains(t, status.Convert(err).Message(), "criproxy: List: reply of backend "+who+": malformed protobuf at byte ")

				o := do(t, cc, muxtest.Method("Stream"), serverStream, "")
				assert.Contains(t, o.err, "code = Internal desc = criproxy: Stream: reply of backend "+who+": malformed protobuf at byte ")

				_, err = call(t, cc, "Browse", "BrowseRequest", "")
				assert.Equal(t, codes.Internal, status.Code(err), "%v", err)
			})
		}
	}
}

func TestTextThatIsNoUTF8SpoilsNoMergedReply(t *testing.T) {
	var mu sync.Mutex
	told := map[string]bool{}
	cfg := director.Config{Profile: muxtest.LibraryProfile(t), Mended: func(b director.Backend, method, field string) {
		mu.Lock()
		defer mu.Unlock()
		told[b.String()+" "+method[strings.LastIndexByte(method, '/')+1:]+" "+field] = true
	}}
	cc := muxtest.Mux(t, cfg, sends(badTitle), sends(badLabel+badID))
	const want = `books {id: "1" title: "a�"} books {labels["�"]: "b"} books {id: "beta.io__2�x"}`
	for _, method := range []string{"List", "Browse"} {
		got, err := call(t, cc, method, method+"Request", "")
		require.NoError(t, err)
		assert.Equal(t, want, muxtest.Text(method+"Response", got))
	}
	o := do(t, cc, muxtest.Method("Stream"), serverStream, "")
	require.Empty(t, o.err)
	slices.Sort(o.replies)
	assert.Equal(t, want, muxtest.Text("ListResponse", codec.NewFrame([]byte(strings.Join(o.replies, "")))))
	for _, method := range []string{"List", "Browse", "Stream"} {
		for _, what := range []string{"primary M library.v1.Book.title", "beta.io M library.v1.Book.LabelsEntry.key", "beta.io M library.v1.Book.id"} {
			assert.True(t, told[strings.Replace(what, "M", method, 1)], "%s of %s in %v", what, method, told)
		}
	}

	one := muxtest.Mux(t, director.Config{Profile: muxtest.LibraryProfile(t)}, sends(badTitle))
	got, err := call(t, one, "List", "ListRequest", "")
	require.NoError(t, err)
	assert.Equal(t, badTitle, string(got.Bytes()), "what a single backend says passes as it is")
}

func TestCodeThatMergesGetsNoBrokenPart(t *testing.T) {
	merged := director.Config{
		Profile: muxtest.LibraryProfile(t, "Tidy: {all: concat, missing: skip}", "Get: {all: whole-book}"),
		Merges: map[string]director.Merge{"whole-book": func(parts []director.Part) (*codec.Frame, error) {
			var bad *director.BrokenReplyError
			if assert.ErrorAs(t, parts[1].Err, &bad) {
				assert.Equal(t, "beta.io", bad.Backend)
			}
			assert.Nil(t, parts[1].Reply)
			return parts[0].Reply, nil
		}},
	}
	cc := muxtest.Mux(t, merged, sends("\x12\x01\xff"), sends("\x12\x05"))
	got, err := call(t, cc, "Get", "GetRequest", "")
	require.NoError(t, err)
	assert.Equal(t, `title: "�"`, muxtest.Text("Book", got))
}

// A client and a Tracer learn which parts of a merged answer come from the cache.
func TestAMergedReplySaysWhatIsFromTheCache(t *testing.T) {
	answers := func(header metadata.MD) muxtest.Handler {
		return func(_ string, stream grpc.ServerStream) error {
			if err := stream.RecvMsg(&codec.Frame{}); err != nil {
				return err
			}
			if err := stream.SetHeader(header); err != nil {
				return err
			}
			return stream.SendMsg(muxtest.Bytes("Book", `title: "Tale"`))
		}
	}
	remembered := func(name string) metadata.MD { return metadata.Pairs(backend.HeaderKey, name, "from", name) }
	for _, c := range []struct {
		what    string
		primary metadata.MD
		want    []string
		parts   []bool
	}{
		{"of the others", metadata.Pairs("from", "primary"), []string{"beta.io", "delta.io"}, []bool{false, true, false, true}},
		{"of the primary", remembered("primary"), []string{"primary", "beta.io", "delta.io"}, []bool{true, true, false, true}},
	} {
		t.Run(c.what, func(t *testing.T) {
			var parts []bool
			cc := muxtest.Mux(t, director.Config{
				Profile: muxtest.LibraryProfile(t, "Tidy: {all: concat, missing: skip}", "Get: {all: whole-book}"),
				Merges: map[string]director.Merge{"whole-book": func(all []director.Part) (*codec.Frame, error) {
					for _, p := range all {
						parts = append(parts, p.Remembered)
					}
					return all[0].Reply, nil
				}},
			}, answers(c.primary), answers(remembered("beta.io")), answers(metadata.Pairs("from", "gamma.io")), answers(remembered("delta.io")))
			var header metadata.MD
			_, err := call(t, cc, "Get", "GetRequest", "", grpc.Header(&header))
			require.NoError(t, err)
			assert.Equal(t, c.want, header[backend.HeaderKey])
			assert.Equal(t, []string{"primary"}, header["from"], "the rest of the header is the primary's")
			assert.Equal(t, c.parts, parts)
		})
	}
}
