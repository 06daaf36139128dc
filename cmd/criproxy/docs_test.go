package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/testing/bounded"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
	"github.com/criproxy/criproxy/internal/testing/testkit"
	"github.com/criproxy/criproxy/internal/testing/untested"
)

// block returns the first block of code of a language in a section of a document.
func block(t *testing.T, document, section, language string) string {
	t.Helper()
	text := readFile(t, filepath.Join("..", "..", "docs", document))
	_, rest, found := strings.Cut(string(text), "\n## "+section+"\n")
	require.True(t, found, "%s has no section %q", document, section)
	_, rest, found = strings.Cut(rest, "\n```"+language+"\n")
	require.True(t, found, "%s, %s: no block of %q", document, section, language)
	code, _, found := strings.Cut(rest, "\n```\n")
	require.True(t, found)
	return code + "\n"
}

func TestPluginInDocsCompiles(t *testing.T) {
	untested.TakesLong(t)
	t.Parallel()
	file := filepath.Join(t.TempDir(), "main.go")
	require.NoError(t, os.WriteFile(file, []byte(block(t, "hooks.md", "Writing a plugin", "go")), 0o600))
	build := bounded.Command(t, "go", "build", "-o", os.DevNull, file)
	build.Dir = filepath.Join("..", "..")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

func TestProfileInDocsIsServed(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	const section = "A worked example"
	for name, language := range map[string]string{"jobs.proto": "proto", "jobs.yaml": "yaml"} {
		require.NoError(t, os.WriteFile(at(name), []byte(block(t, "profile.md", section, language)), 0o600))
	}

	_, want, _ := strings.Cut(block(t, "profile.md", section, "console"), "\n") // without the command
	assert.Equal(t, want, strings.TrimPrefix(says(t, "check", "-profile", at("jobs.yaml"), "-proto", at("jobs.proto")), "\n"))

	for _, name := range []string{"jobs.sock", "east.sock"} { // messages of the test's own API have the same form
		muxtest.Serve(t, at(name), muxtest.Unary(func(_ context.Context, method string, _ *codec.Frame) (*codec.Frame, error) {
			if strings.HasSuffix(method, "/List") {
				return muxtest.Bytes("ListResponse", `books { id: "7" title: "`+name+`" }`), nil
			}
			return muxtest.Bytes("Book", `id: "7" title: "`+name+`"`), nil
		}))
	}
	served(t, at("all.sock"), "-profile", at("jobs.yaml"), "-proto", at("jobs.proto"), "-state-dir", "none", "-hooks", "none",
		"-connect", at("jobs.sock")+",east:"+at("east.sock"), "-listen", at("all.sock"))
	call := func(method string, request *codec.Frame) *codec.Frame {
		t.Helper()
		reply := &codec.Frame{}
		require.NoError(t, testkit.Dialed(t, at("all.sock")).Invoke(t.Context(), "/jobs.v1.Jobs/"+method, request, reply))
		return reply
	}
	muxtest.EqualProto(t, "ListResponse", `books { id: "7" title: "jobs.sock" } books { id: "east__7" title: "east.sock" }`, call("List", muxtest.Bytes("ListRequest", "")))
	muxtest.EqualProto(t, "Book", `id: "east__7" title: "east.sock"`, call("Get", muxtest.Bytes("GetRequest", `book_id: "east__7"`)))
}
