package dump_test

import (
	"encoding/hex"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/internal/base/dump"
)

// Each golden file holds a schema, and messages with the expected output. A message is given as text
// (in), or as wire bytes: hex digits and quoted strings, with comments after "#". If both are given,
// the wire bytes follow the text. Each want applies to the message and the options above it.
//
//	-- in --      name: "web"
//	-- wire --    9a 03 03 "abc"   # field 51, which the schema does not have
//	-- options -- max 10 unsafe secret Top.name
//	-- want --    name: "web" 51: "abc"
func TestTextGoldens(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			golden, err := txtar.ParseFile(file)
			require.NoError(t, err)
			var md protoreflect.MessageDescriptor
			var text dump.Text
			var in []byte
			for _, f := range golden.Files {
				data := string(f.Data)
				switch f.Name {
				case "schema.proto":
					md = top(t, data)
				case "in":
					in = parse(t, md, data)
				case "wire":
					in = append(in, fromHex(t, data)...)
				case "options":
					text = options(t, data)
				case "want":
					assert.Equal(t, strings.TrimSpace(data), string(text.Append(nil, md, in)))
					in, text = nil, dump.Text{}
				default:
					require.Fail(t, "a golden has no part called "+f.Name)
				}
			}
		})
	}
}

func options(t testing.TB, data string) (text dump.Text) {
	t.Helper()
	words := strings.Fields(data)
	for len(words) > 0 {
		switch words[0] {
		case "unsafe":
			text.Unsafe = true
			words = words[1:]
		case "max":
			n, err := strconv.Atoi(words[1])
			require.NoError(t, err)
			text.MaxValue = n
			words = words[2:]
		case "secret":
			name, inner := protoreflect.FullName(words[1]), text.Secrets.Field
			text.Secrets.Field = func(fd protoreflect.FieldDescriptor) bool { return fd.FullName() == name || inner != nil && inner(fd) }
			words = words[2:]
		default:
			require.Fail(t, "a golden has no option called "+words[0])
		}
	}
	return text
}

func fromHex(t testing.TB, data string) (b []byte) {
	t.Helper()
	for line := range strings.Lines(data) {
		for line = strings.TrimSpace(line); line != "" && line[0] != '#'; line = strings.TrimSpace(line) {
			if line[0] == '"' {
				quoted, err := strconv.QuotedPrefix(line)
				require.NoError(t, err)
				s, err := strconv.Unquote(quoted)
				require.NoError(t, err)
				b, line = append(b, s...), line[len(quoted):]
				continue
			}
			x, err := hex.DecodeString(line[:2])
			require.NoError(t, err)
			b, line = append(b, x...), line[2:]
		}
	}
	return b
}

func TestAppendKeepsWhatIsBefore(t *testing.T) {
	assert.Equal(t, `before 1: "x"`, string(dump.Text{}.Append([]byte("before "), nil, []byte("\x0a\x01x"))))
	assert.Equal(t, "", string(dump.Text{}.Append(nil, nil, nil)))
}

func TestNestingIsBounded(t *testing.T) {
	md := top(t, `syntax = "proto3"; message Top { Top top = 1; string name = 2; }`)
	for name, md := range map[string]protoreflect.MessageDescriptor{"known": md, "unknown": nil} {
		t.Run(name, func(t *testing.T) {
			b := []byte("\x12\x01\x01") // not text, so that a guess goes deeper
			for range 10000 {
				b = protowire.AppendBytes([]byte{0x0a}, b)
			}
			got := string(dump.Text{}.Append(nil, md, b))
			assert.LessOrEqual(t, strings.Count(got, " {"), 101)
			if md != nil { // otherwise a message that is nested too deep is printed as bytes
				assert.Contains(t, got, "!: nested too deep")
			}

			groups := append(append([]byte{}, strings.Repeat("\x0b", 5000)...), strings.Repeat("\x0c", 5000)...)
			got = string(dump.Text{}.Append(nil, md, groups))
			assert.Contains(t, got, "!: nested too deep")
		})
	}
}
