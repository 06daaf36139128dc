package config

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write docs/config.md")

// configDoc makes docs/config.md of the comments of Config.
type configDoc struct {
	structs map[string]*ast.StructType // :: name
	keys    map[string]string          // :: name of a field → key in the file
	out     strings.Builder
}

const configDocHead = `# The configuration file

The file is YAML: ` + "`criproxy -config FILE`" + `, by default ` + "`" + DefaultConfig + "`" + `. Unknown keys, repeated keys and wrong types ` +
	`are mistakes; criproxy reports all mistakes at once. ` + "`criproxy check -config FILE`" + ` tries a file, and says what it would change in the ` +
	`criproxy that runs. Flags take precedence over the file. criproxy reads the file again when it changes and on SIGHUP; a file with mistakes ` +
	`changes nothing. Changes of these settings wait for a restart (kill -USR2 fails no call): %s. So do changes of profile, proto and rules, as ` +
	`far as they concern the recording.

This page is made from the comments in the program: go test ./internal/config -run Configuration -update.

`

func TestTheDocsOfTheConfigurationAreThoseOfTheProgram(t *testing.T) {
	d := &configDoc{structs: map[string]*ast.StructType{}, keys: map[string]string{}}
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		require.NoError(t, err)
		ast.Inspect(parsed, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				if s, ok := spec.Type.(*ast.StructType); ok {
					d.structs[spec.Name.Name] = s
				}
			}
			return true
		})
	}
	fmt.Fprintf(&d.out, configDocHead, strings.Join(restartKeys(), ", "))
	d.fields(t, "", reflect.TypeFor[Config]())
	path := filepath.Join("..", "..", "docs", "config.md")
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(broken(d.out.String())), 0o644))
	}
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, broken(d.out.String()), string(got), "run go test ./internal/config -run Configuration -update")
}

// fields writes about the fields of a struct that is at path.
func (d *configDoc) fields(t *testing.T, path string, of reflect.Type) {
	s := d.structs[of.Name()]
	require.NotNil(t, s, of.Name())
	for i := range of.NumField() {
		d.keys[of.Field(i).Name] = of.Field(i).Tag.Get("yaml")
	}
	docs := map[string]string{}
	for _, f := range s.Fields.List {
		for _, name := range f.Names {
			docs[name.Name] = strings.Join(strings.Fields(f.Doc.Text()), " ")
		}
	}
	previous, first := "", "" // the latest comment, and the key of the first field that it is about
	for i := range of.NumField() {
		f := of.Field(i)
		key := f.Tag.Get("yaml")
		if key == "" || key == "-" {
			continue
		}
		doc := d.asKeys(docs[f.Name])
		if doc == "" {
			require.Contains(t, previous, f.Name, "%s.%s has no comment", of.Name(), f.Name)
			doc = "See `" + path + first + "`."
		} else {
			previous, first = docs[f.Name], key
		}
		fmt.Fprintf(&d.out, "### `%s%s`\n\n%s. %s\n\n", path, key, kindOf(f.Type), doc)
		item := f.Type
		next := path + key + "."
		if item.Kind() == reflect.Slice {
			item, next = item.Elem(), path+key+"[]."
		}
		if item.Kind() == reflect.Struct {
			d.fields(t, next, item)
		}
	}
}

// broken is text whose lines have at most 120 characters, where a word can be broken off.
func broken(text string) string {
	var b strings.Builder
	for paragraph := range strings.SplitSeq(text, "\n") {
		column := 0
		for i, word := range strings.Split(paragraph, " ") {
			n := utf8.RuneCountInString(word)
			switch {
			case i == 0:
			case column+1+n > 120:
				b.WriteByte('\n')
				column = 0
			default:
				b.WriteByte(' ')
				column++
			}
			b.WriteString(word)
			column += n
		}
		b.WriteByte('\n')
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// asKeys is a comment with the names of fields as they are in the file.
func (d *configDoc) asKeys(doc string) string {
	return regexp.MustCompile(`\b[A-Z]\w+\b`).ReplaceAllStringFunc(doc, func(word string) string {
		if key := d.keys[word]; key != "" {
			return "`" + key + "`"
		}
		return word
	})
}

func kindOf(t reflect.Type) string {
	switch {
	case t.String() == "time.Duration":
		return "Time, such as 500ms or 2s"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct:
		return "List of keys and values"
	case t.Kind() == reflect.Slice:
		return "List"
	case t.Kind() == reflect.Map, t.Kind() == reflect.Struct, t.Kind() == reflect.Pointer:
		return "Keys and values"
	case t.Kind() == reflect.String:
		return "Text"
	}
	return "Whole number"
}
