package rewrite_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/rewrite"
)

func TestLookup(t *testing.T) {
	md := compile(t, fuzzSchema).Messages().ByName("Top")
	in := parse(t, md, `id: "top" names {key: "a.b/c" value: "named"} names {key: "" value: "nameless"} top {top {id: "deep"}} item {id: "no"}`)
	twice := append(append(in, in...), parse(t, md, `top {top {id: "last"}}`)...)
	for _, c := range []struct {
		path, in, want string
		found          bool
	}{
		{`id`, string(in), "top", true},
		{`names["a.b/c"]`, string(in), "named", true},
		{`names[""]`, string(in), "nameless", true},
		{`names["other"]`, string(in), "", false},
		{`top.top.id`, string(in), "deep", true},
		{`top.id`, string(in), "", false},
		{`top.top.id`, string(twice), "last", true},
		{`id`, "", "", false},
		{`id`, "\xa3\x06\x0a\x01x\xa4\x06", "", false}, // inside of an unknown group
		{`id`, "\x0a\x00", "", true},
		{`names[""]`, "\x32\x03\x12\x01v", "v", true}, // an entry without a key
	} {
		p, err := rewrite.ParsePath(md, c.path)
		require.NoError(t, err)
		got, found, err := p.Lookup([]byte(c.in))
		require.NoError(t, err)
		assert.Equal(t, c.found, found, c.path)
		assert.Equal(t, c.want, string(got), c.path)
		assert.Equal(t, c.path, p.String())

		made, found, err := p.Lookup(p.Append(nil, []byte("made")))
		require.NoError(t, err)
		assert.True(t, found)
		assert.Equal(t, "made", string(made))
	}
	p, err := rewrite.ParsePath(md, `top.id`)
	require.NoError(t, err)
	_, _, err = p.Lookup([]byte("\x22\x03\x0a\x05a"))
	assert.EqualError(t, err, "malformed protobuf at byte 1: length 5, but 1 bytes are left")
}

func TestLookupOfNumbers(t *testing.T) {
	md := compile(t, fuzzSchema).Messages().ByName("Top")
	for _, c := range []struct {
		path, in string
		want     uint64
		found    bool
	}{
		{`size`, `size: 7`, 7, true},
		{`size`, ``, 0, false},
		{`right.size`, `right {size: 3}`, 3, true},
		{`right.size`, `right {}`, 0, true}, // a zero is not on the wire
		{`right.size`, ``, 0, false},
		{`top.right.size`, `top {}`, 0, false},
	} {
		p, err := rewrite.ParsePath(md, c.path)
		require.NoError(t, err)
		got, found, err := p.LookupVarint(parse(t, md, c.in))
		require.NoError(t, err)
		assert.Equal(t, c.want, got, "%s in %s", c.path, c.in)
		assert.Equal(t, c.found, found, "%s in %s", c.path, c.in)
	}
}

func TestPathsToListsAndMaps(t *testing.T) {
	md := compile(t, fuzzSchema).Messages().ByName("Top")
	in := parse(t, md, `top {alias: "a" alias: "" alias: "b" names {key: "k" value: "v"} names {key: "l"}}`)
	p, err := rewrite.ParsePath(md, "top.alias")
	require.NoError(t, err)
	assert.False(t, p.IsText())
	var got []string
	require.NoError(t, p.All(in, func(v []byte) error { got = append(got, string(v)); return nil }))
	assert.Equal(t, []string{"a", "", "b"}, got)

	p, err = rewrite.ParsePath(md, "top.names")
	require.NoError(t, err)
	entries := map[string]string{}
	require.NoError(t, p.Entries(in, func(k, v []byte) error { entries[string(k)] = string(v); return nil }))
	assert.Equal(t, map[string]string{"k": "v", "l": ""}, entries)
}

func TestBadPaths(t *testing.T) {
	md := compile(t, fuzzSchema).Messages().ByName("Top")
	for path, want := range map[string]string{
		``:            `path : fuzz.Top has no field ""`,
		`idd`:         `path idd: fuzz.Top has no field "idd" (did you mean "id"?)`,
		`top.naems`:   `path top.naems: fuzz.Top has no field "naems" (did you mean "names"?)`,
		`id.x`:        `path id.x: id is not a message, nothing can follow it`,
		`id.`:         `path id.: id is not a message, nothing can follow it`,
		`top.`:        `path top.: fuzz.Top has no field ""`,
		`names.x`:     `path names.x: names is a map, want names["key"]`,
		`names["x"`:   `path names["x": names is a map, want names["key"]`,
		`names[x]`:    `path names[x]: names is a map, want names["key"]`,
		`id["x"]`:     `path id["x"]: id is not a map`,
		`item.id`:     `path item.id: item is a list, nothing can follow it`,
		`numbered[1]`: `path numbered[1]: numbered is a map, want numbered["key"]`,
	} {
		_, err := rewrite.ParsePath(md, path)
		assert.EqualError(t, err, want)
	}
}
