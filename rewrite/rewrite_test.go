package rewrite_test

import (
	"bufio"
	"bytes"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/criproxy/criproxy/internal/testing/prototest"
	"github.com/criproxy/criproxy/rewrite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Each golden holds a schema, rules ("Message.field edit", an edit being one of
// edits below), a message and what it becomes.
func TestGoldens(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			golden, err := txtar.ParseFile(file)
			require.NoError(t, err)
			part := map[string]string{}
			for _, f := range golden.Files {
				part[f.Name] = string(f.Data)
			}
			fd := compile(t, part["schema.proto"])
			md := fd.Messages().ByName("Top")
			require.NotNil(t, md, "the message of a golden is called Top")

			classes, err := rewrite.Classify([]protoreflect.MessageDescriptor{md}, rules(t, part["rules"]))
			if want, bad := part["error"]; bad {
				require.Error(t, err)
				assert.Equal(t, strings.TrimSpace(want), err.Error())
				return
			}
			require.NoError(t, err)
			plan := classes.Plan(md)
			if want, ok := part["paths"]; ok {
				var got strings.Builder
				for _, p := range plan.Paths() {
					got.WriteString(p.Path + "\n")
				}
				assert.Equal(t, want, got.String())
			}
			in, want := parse(t, md, part["in"]), parse(t, md, part["want"])
			got, err := plan.Apply(nil, in, edit)
			require.NoError(t, err)
			assertSame(t, md, want, got)

			same, err := plan.Apply([]byte("before"), in, identity)
			require.NoError(t, err)
			assert.Equal(t, append([]byte("before"), in...), same, "an edit that changes nothing changes no byte")

			if part["found"] != "" {
				found, err := plan.Find(nil, in)
				require.NoError(t, err)
				var values []string
				for _, f := range found {
					values = append(values, string(f.Value))
				}
				assert.Equal(t, strings.Fields(part["found"]), values)
			}
		})
	}
}

// The edits of the goldens. Their classes are their places, counted from 1.
var edits = []struct {
	name string
	edit func(dst, v []byte) ([]byte, error)
}{
	{"prefix", func(dst, v []byte) ([]byte, error) { return append(append(dst, "beta.io__"...), v...), nil }},
	{"strip", func(dst, v []byte) ([]byte, error) {
		return append(dst, bytes.TrimPrefix(v, []byte("beta.io__"))...), nil
	}},
	{"empty", func(dst, _ []byte) ([]byte, error) { return dst, nil }},
	{"drop", func(dst, _ []byte) ([]byte, error) { return append(dst, "garbage"...), rewrite.ErrDrop }},
	{"fail", func(dst, _ []byte) ([]byte, error) { return dst, errRefused }},
	{"upper", func(dst, v []byte) ([]byte, error) { return append(dst, bytes.ToUpper(v)...), nil }},
}

var errRefused = errors.New("this edit refuses")

func edit(dst []byte, c rewrite.Class, v []byte) ([]byte, error) { return edits[c-1].edit(dst, v) }

func identity(dst []byte, _ rewrite.Class, v []byte) ([]byte, error) { return append(dst, v...), nil }

func rules(t testing.TB, text string) []rewrite.Rule {
	t.Helper()
	var rules []rewrite.Rule
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if len(words) == 0 {
			continue
		}
		require.Len(t, words, 2)
		class := rewrite.Class(0)
		for i, e := range edits {
			if e.name == words[1] {
				class = rewrite.Class(i + 1)
			}
		}
		require.Equal(t, words[1] == "none", class == 0, "no edit is called %s", words[1])
		rules = append(rules, rewrite.Rule{Field: words[0], Class: class})
	}
	return rules
}

func compile(t testing.TB, schema string) protoreflect.FileDescriptor {
	t.Helper()
	return prototest.Compile(t, map[string]string{"schema.proto": schema}, "schema.proto")
}

var parse = prototest.Marshal

// planOf returns the plan of some rules for the messages of fuzzSchema.
func planOf(t testing.TB, rules []rewrite.Rule) (protoreflect.MessageDescriptor, *rewrite.Plan) {
	t.Helper()
	md := compile(t, fuzzSchema).Messages().ByName("Top")
	classes, err := rewrite.Classify([]protoreflect.MessageDescriptor{md}, rules)
	require.NoError(t, err)
	return md, classes.Plan(md)
}

func assertSame(t testing.TB, md protoreflect.MessageDescriptor, want, got []byte) {
	t.Helper()
	w, g := dynamicpb.NewMessage(md), dynamicpb.NewMessage(md)
	require.NoError(t, proto.Unmarshal(want, w))
	require.NoError(t, proto.Unmarshal(got, g), "the edited message is no valid protobuf")
	if !proto.Equal(w, g) {
		assert.Equal(t, protojson.Format(w), protojson.Format(g))
		t.Fail()
	}
}

func TestAnErrorOfAnEditComesBackAsItIs(t *testing.T) {
	md, plan := planOf(t, []rewrite.Rule{{Field: "Top.id", Class: 5}})
	_, err := plan.Apply(nil, parse(t, md, `id: "x"`), edit)
	assert.Same(t, errRefused, err)
}

func TestMalformedInputIsAnErrorThatSaysWhere(t *testing.T) {
	_, plan := planOf(t, fuzzRules)
	for _, c := range []struct{ name, in, want string }{
		{"no tag", "\x80", "at byte 0: bad tag"},
		{"field number 0", "\x02\x00", "at byte 0: field number 0"},
		{"field number too large", "\xfa\xff\xff\xff\xff\x01\x00", "at byte 0: field number 8589934591"},
		{"length leaves the message", "\x0a\x05abcd", "at byte 1: length 5, but 4 bytes are left"},
		{"length leaves the nested message", "\x12\x03\x0a\x02a", "at byte 3: length 2, but 1 bytes are left"},
		{"length wraps around", "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "at byte 1: length 18446744073709551615, but 0 bytes are left"},
		{"varint without end", "\x18\xff\xff", "at byte 1: bad varint"},
		{"varint of 11 bytes", "\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "at byte 1: bad varint"},
		{"fixed32 cut off", "\x1d\x01\x02\x03", "at byte 1: value is cut off"},
		{"fixed64 cut off", "\x19\x01\x02\x03", "at byte 1: value is cut off"},
		{"wire type 6", "\x0e", "at byte 0: wire type 6"},
		{"group without end", "\xa3\x06\x0a\x00", "group 100 is not closed"},
		{"group closed as another", "\xa3\x06\xac\x06", "group 100 is closed as group 101"},
		{"end of a group that was not open", "\xa4\x06", "end of group 100, which was not open"},
		{"described group without end", "\x2b\x0a\x00", "group 5 is not closed"},
		{"described group closed as another", "\x2b\x34", "end of group 6, which was not open"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := plan.Apply(nil, []byte(c.in), identity)
			var bad *rewrite.MalformedError
			require.ErrorAs(t, err, &bad)
			assert.Contains(t, err.Error(), c.want)
			_, err = plan.Find(nil, []byte(c.in))
			assert.ErrorAs(t, err, &bad)
		})
	}
}

func TestOversizedVarintsSurviveWhereNothingChanges(t *testing.T) {
	md, plan := planOf(t, fuzzRules)
	in := []byte("\x12\x88\x80\x00\x0a\x82\x80\x00ab\x18\x01" + "\x8a\x80\x00\x83\x00xyz")
	out, err := plan.Apply(nil, in, identity)
	require.NoError(t, err)
	assert.Equal(t, in, out)

	out, err = plan.Apply(nil, in, func(dst []byte, _ rewrite.Class, v []byte) ([]byte, error) {
		return append(append(dst, v...), '!'), nil
	})
	require.NoError(t, err)
	assertSame(t, md, parse(t, md, `item {id: "ab!" size: 1} id: "xyz!"`), out)
}

func TestHostileNestingIsRefused(t *testing.T) {
	_, plan := planOf(t, fuzzRules)
	groups := bytes.Repeat([]byte{0xa3, 0x06}, 20000)
	groups = append(groups, bytes.Repeat([]byte{0xa4, 0x06}, 20000)...)
	_, err := plan.Apply(nil, groups, identity)
	assert.ErrorContains(t, err, "nested too deep")
	var messages []byte
	for range 20000 {
		messages = append(append([]byte{0x22}, varint(len(messages))...), messages...)
	}
	_, err = plan.Apply(nil, messages, identity)
	assert.ErrorContains(t, err, "nested too deep")
}

func varint(n int) []byte {
	var b []byte
	for ; n >= 0x80; n >>= 7 {
		b = append(b, byte(n)|0x80)
	}
	return append(b, byte(n))
}

func TestApplyNeedsNoMemoryOfItsOwn(t *testing.T) {
	md, plan := planOf(t, fuzzRules)
	in := parse(t, md, `id: "a" item {id: "b"} names {key: "k" value: "c"} top {id: "d"}`)
	dst, found := make([]byte, 0, 200), make([]rewrite.Found, 0, 8)
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		_, _ = plan.Apply(dst, in, edit)
		_, _ = plan.Find(found, in)
	}))
}

func TestAFieldIsAddedWhereItIsNotThere(t *testing.T) {
	fd := compile(t, `syntax = "proto3";
message Top { repeated Pod pods = 1; Pod last = 300; string note = 3; }
message Pod { string id = 1; string handler = 20; Pod inner = 3; bytes big = 4; repeated string tags = 5; }`)
	md := fd.Messages().ByName("Top")
	rules := []rewrite.Rule{{Field: "Pod.id", Class: 1}, {Field: "Pod.handler", Class: 2, Absent: true}}
	classes, err := rewrite.Classify([]protoreflect.MessageDescriptor{md}, rules)
	require.NoError(t, err)
	plan := classes.Plan(md)
	group := compile(t, `edition = "2023"; message Top { Pod pod = 1 [features.message_encoding = DELIMITED]; } message Pod { string handler = 20; }`).Messages().ByName("Top")
	grouped, err := rewrite.Classify([]protoreflect.MessageDescriptor{group}, []rewrite.Rule{{Field: "Pod.handler", Class: 2, Absent: true}})
	require.NoError(t, err)
	name := func(dst []byte, c rewrite.Class, v []byte) ([]byte, error) {
		if c == 2 && len(v) == 0 {
			return append(dst, "two"...), nil
		}
		return append(dst, v...), nil
	}
	for in, want := range map[string]string{
		`note: "n"`: `note: "n"`,
		`pods {}`:   `pods {handler: "two"}`,
		`pods {id: "1"} pods {id: "2" handler: "runc"} last {}`: `pods {id: "1" handler: "two"} pods {id: "2" handler: "runc"} last {handler: "two"}`,
		`pods {inner {inner {}}}`:                               `pods {inner {inner {handler: "two"} handler: "two"} handler: "two"}`,
		// A length grows by a byte, twice.
		`pods {id: "` + strings.Repeat("x", 120) + `" inner {}}`:   `pods {id: "` + strings.Repeat("x", 120) + `" inner {handler: "two"} handler: "two"}`,
		`pods {inner {big: "` + strings.Repeat("x", 16380) + `"}}`: `pods {inner {big: "` + strings.Repeat("x", 16380) + `" handler: "two"} handler: "two"}`,
	} {
		got, err := plan.Apply([]byte("before"), parse(t, md, in), name)
		require.NoError(t, err)
		assertSame(t, md, parse(t, md, want), bytes.TrimPrefix(got, []byte("before")))
		same, err := plan.Apply(nil, parse(t, md, in), identity)
		require.NoError(t, err)
		assert.Equal(t, parse(t, md, in), same, "an edit that adds nothing changes no byte")
		found, err := plan.Find(nil, parse(t, md, in))
		require.NoError(t, err)
		for _, f := range found {
			assert.NotEmpty(t, f.Value, "what is not there is not found")
		}
	}
	got, err := grouped.Plan(group).Apply(nil, parse(t, group, `pod {}`), name)
	require.NoError(t, err)
	assertSame(t, group, parse(t, group, `pod {handler: "two"}`), got)
	_, err = plan.Apply(nil, parse(t, md, `pods {}`), func(dst []byte, _ rewrite.Class, _ []byte) ([]byte, error) { return dst, errRefused })
	assert.ErrorIs(t, err, errRefused)
	_, err = rewrite.Classify([]protoreflect.MessageDescriptor{md}, []rewrite.Rule{{Field: "Pod.tags", Class: 1, Absent: true}})
	assert.EqualError(t, err, "Pod.tags: is not a single string, and cannot be added to a message without it")
}
