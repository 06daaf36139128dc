package rewrite_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/criproxy/criproxy/internal/base/dump"
	"github.com/criproxy/criproxy/rewrite"
)

// paths to what a patch can change in a Top.
type patchPaths struct {
	id, size, names, alias, item, deepSize, deepID, deepNames, blob *rewrite.Path
}

func newPatchPaths(t testing.TB) (protoreflect.MessageDescriptor, patchPaths) {
	md := compile(t, fuzzSchema).Messages().ByName("Top")
	path := func(text string) *rewrite.Path {
		p, err := rewrite.ParsePath(md, text)
		require.NoError(t, err)
		return p
	}
	return md, patchPaths{
		id: path("id"), size: path("size"), names: path("names"), alias: path("alias"), item: path("item"),
		deepSize: path("top.right.size"), deepID: path("top.right.id"), deepNames: path("top.top.names"), blob: path("blob"),
	}
}

func TestPatch(t *testing.T) {
	md, at := newPatchPaths(t)
	for name, c := range map[string]struct {
		in, want string
		change   func(p *rewrite.Patch)
	}{
		"nothing": {`id: "a" | size: 7 | alias: "x"`, `id: "a" size: 7 alias: "x"`, func(*rewrite.Patch) {}},
		"values in place": {`alias: "x" | id: "a" | item {} | size: 7 | id: "c"`, `alias: "x" id: "b" item {} size: 8 id: "b"`, func(p *rewrite.Patch) {
			p.SetString(at.id, "b")
			p.SetVarint(at.size, 8)
		}},
		"values that are new go to the end": {`alias: "x"`, `alias: "x" size: 8 blob: "b"`, func(p *rewrite.Patch) {
			p.SetVarint(at.size, 8)
			p.SetString(at.blob, "b")
		}},
		"values that are removed": {`id: "a" | size: 7 | alias: "x" | size: 8`, `alias: "x"`, func(p *rewrite.Patch) {
			p.SetString(at.id, "")
			p.SetVarint(at.size, 0)
		}},
		"messages are made on the way": {`id: "a"`, `id: "a" top {right {size: 1 id: "r"}}`, func(p *rewrite.Patch) {
			p.SetVarint(at.deepSize, 1)
			p.SetString(at.deepID, "r")
		}},
		"but not to remove something in them": {`id: "a"`, `id: "a"`, func(p *rewrite.Patch) {
			p.SetVarint(at.deepSize, 0)
			p.RemoveEntry(at.deepNames, "k")
		}},
		"deep inside": {`top {right {id: "r"}} | size: 4`, `top {right {id: "r" size: 5}} size: 4`, func(p *rewrite.Patch) {
			p.SetVarint(at.deepSize, 5)
		}},
		"entries of a map": {`names {key: "a" value: "1"} | id: "i" | names {key: "b" value: "2"} | names {key: "c" value: "3"} | size: 1`,
			`names["a"]: "one" id: "i" names["c"]: "3" names["d"]: "4" size: 1`, func(p *rewrite.Patch) {
				p.SetEntry(at.names, "a", "one")
				p.RemoveEntry(at.names, "b")
				p.SetEntry(at.names, "d", "4")
				p.RemoveEntry(at.names, "none")
			}},
		"entries of a list, in order, and all of one name": {
			`item {id: "P" plain: "1"} | item {id: "A" plain: "x" size: 9} | item {id: "P" plain: "2"} | item {id: "B"} | item {id: "A"} | size: 1`,
			`item {id: "P" plain: "1"} item {id: "A" plain: "y" size: 9} item {id: "P" plain: "2"} item {id: "A" plain: "y"} item {id: "N" plain: "n"} size: 1`,
			func(p *rewrite.Patch) {
				p.SetEntry(at.item, "A", "y")
				p.RemoveEntry(at.item, "B")
				p.SetEntry(at.item, "N", "n")
			}},
		"the last way to set an entry counts": {``, `names["a"]: "2"`, func(p *rewrite.Patch) {
			p.RemoveEntry(at.names, "a")
			p.SetEntry(at.names, "a", "1")
			p.SetEntry(at.names, "a", "2")
		}},
		"items take the place of the last": {`alias: "x" | id: "i" | alias: "y" | size: 1`, `id: "i" alias: "1" alias: "2" alias: "3" size: 1`, func(p *rewrite.Patch) {
			p.SetItems(at.alias, [][]byte{[]byte("1"), []byte("2"), []byte("3")})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var p rewrite.Patch
			c.change(&p)
			assert.Equal(t, name == "nothing", p.Empty())
			out, err := p.Apply([]byte("before"), inOrder(t, md, c.in))
			require.NoError(t, err)
			assert.Equal(t, c.want, text(md, bytes.TrimPrefix(out, []byte("before"))))
			again, err := p.Apply(nil, inOrder(t, md, c.in))
			require.NoError(t, err)
			assert.Equal(t, c.want, text(md, again), "a second time")
		})
	}
}

// inOrder returns the fields of a message in the order in which they are written,
// separated by bars; an encoder would sort them.
func inOrder(t *testing.T, md protoreflect.MessageDescriptor, fields string) []byte {
	var b []byte
	for _, field := range strings.Split(fields, " | ") {
		b = append(b, parse(t, md, field)...)
	}
	return b
}

func text(md protoreflect.MessageDescriptor, b []byte) string {
	return string(dump.Text{}.Append(nil, md, b))
}

// A decoder merges the pieces of a message: it has the fields of all of them.
func TestPatchOfAMessageInPieces(t *testing.T) {
	md, at := newPatchPaths(t)
	in := inOrder(t, md, `top {right {id: "r" size: 1}} | top {size: 2}`)
	var p rewrite.Patch
	p.SetVarint(at.deepSize, 5)
	p.SetString(at.deepID, "s")
	p.SetEntry(at.deepNames, "k", "v")
	out, err := p.Apply(nil, in)
	require.NoError(t, err)
	assert.Equal(t, `top {right {id: "s" size: 5}} top {size: 2 top {names["k"]: "v"}}`, text(md, out))
}

func TestPatchRefusesWhatItCannotDo(t *testing.T) {
	md, at := newPatchPaths(t)
	key, err := rewrite.ParsePath(md, `names["k"]`)
	require.NoError(t, err)
	var p rewrite.Patch
	p.SetString(key, "v")
	_, err = p.Apply(nil, nil)
	assert.EqualError(t, err, `path names["k"]: leads through a map key; a patch cannot change that`)

	p = rewrite.Patch{}
	p.SetEntry(at.alias, "k", "v")
	p.SetItems(at.alias, nil)
	_, err = p.Apply(nil, nil)
	assert.EqualError(t, err, `path alias: the patch changes this field in two ways`)

	p = rewrite.Patch{}
	p.SetVarint(at.deepSize, 5)
	_, err = p.Apply(nil, []byte("\x08\x01\x22\x03\x5a\x05a"))
	assert.EqualError(t, err, "malformed protobuf at byte 5: length 5, but 1 bytes are left")
}

// FuzzPatch compares a patch with the same changes made through protoreflect.
func FuzzPatch(f *testing.F) {
	md, at := newPatchPaths(f)
	for _, text := range []string{
		``, `id: "a" size: 3 names {key: "k" value: "v"} alias: "x" item {id: "k" plain: "v"}`,
		`top {right {id: "r"} top {names {key: "k"}}} blob: "b"`,
	} {
		f.Add(parse(f, md, text), "k", "value", uint64(7))
	}
	f.Add(append(parse(f, md, `top {right {id: "r"}}`), parse(f, md, `top {size: 2}`)...), "k", "", uint64(0))
	f.Fuzz(func(t *testing.T, in []byte, key, value string, n uint64) {
		if len(in) > 1<<16 || len(key)+len(value) > 1<<12 {
			t.Skip("larger inputs find nothing new, slowly")
		}
		want := dynamicpb.NewMessage(md)
		decodeErr := proto.Unmarshal(in, want)
		var p rewrite.Patch
		same, err := p.Apply(nil, in)
		if err == nil && !bytes.Equal(in, same) {
			t.Fatalf("no change changed %x to %x", in, same)
		}
		p.SetVarint(at.size, n)
		p.SetString(at.id, value)
		p.SetString(at.blob, value)
		p.SetVarint(at.deepSize, n)
		p.SetEntry(at.names, key, value)
		p.SetEntry(at.deepNames, key, value)
		p.SetItems(at.alias, [][]byte{[]byte(key), []byte(value)})
		out, err := p.Apply(nil, in)
		if err != nil {
			if decodeErr == nil {
				t.Fatalf("refused what protobuf takes: %v", err)
			}
			return
		}
		if decodeErr != nil {
			return
		}
		got := dynamicpb.NewMessage(md)
		if err := proto.Unmarshal(out, got); err != nil {
			t.Fatalf("made %x of %x: %v", out, in, err)
		}
		set := func(m protoreflect.Message, name string, v protoreflect.Value) {
			m.Set(m.Descriptor().Fields().ByName(protoreflect.Name(name)), v)
		}
		sub := func(m protoreflect.Message, name string) protoreflect.Message {
			return m.Mutable(m.Descriptor().Fields().ByName(protoreflect.Name(name))).Message()
		}
		entry := func(m protoreflect.Message) {
			m.Mutable(m.Descriptor().Fields().ByName("names")).Map().Set(protoreflect.ValueOfString(key).MapKey(), protoreflect.ValueOfString(value))
		}
		set(want, "size", protoreflect.ValueOfInt64(int64(n)))
		set(want, "id", protoreflect.ValueOfString(value))
		set(want, "blob", protoreflect.ValueOfBytes([]byte(value)))
		entry(want)
		alias := want.NewField(md.Fields().ByName("alias"))
		alias.List().Append(protoreflect.ValueOfString(key))
		alias.List().Append(protoreflect.ValueOfString(value))
		set(want, "alias", alias)
		entry(sub(sub(want, "top"), "top"))
		right := md.Fields().ByName("right")
		top := sub(want, "top")
		if n == 0 && !top.Has(right) {
			// A zero makes no message to hold it.
		} else if top.Has(md.Fields().ByName("left")) {
			return // which of two members of a oneof came last is not the patch's business
		} else {
			set(sub(top, "right"), "size", protoreflect.ValueOfInt64(int64(n)))
		}
		if !proto.Equal(want, got) {
			t.Fatalf("in %x\ngot  %v\nwant %v", in, got, want)
		}
	})
}
