package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// The profile of an API without pods says what ABOUT shows, live and in a recording, which is read
// without the profile.
func TestProfileSaysWhatOtherAPIsAreAbout(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	back, socket, file := filepath.Join(dir, "back.sock"), filepath.Join(dir, "front.sock"), filepath.Join(dir, "calls.jsonl")
	muxtest.Serve(t, back, muxtest.Unary(func(_ context.Context, method string, _ *codec.Frame) (*codec.Frame, error) {
		if method == muxtest.Method("Put") {
			return muxtest.Bytes("Book", `id: "7f" title: "Tale"`), nil
		}
		return muxtest.Bytes("Page", ``), nil
	}))
	library := readFile(t, filepath.Join("..", "..", "internal", "testing", "muxtest", "library.yaml"))
	profile := filepath.Join(dir, "library.yaml")
	require.NoError(t, os.WriteFile(profile, append(library, "about: {Book.title: name, PutRequest.shelf: namespace}\n"...), 0o600))
	served(t, socket, "-connect", back, "-listen", socket, "-state-dir", "none", "-hooks", "none",
		"-profile", profile, "-proto", filepath.Join("..", "..", "internal", "testing", "muxtest", "library.proto"))
	cc := testkit.Dialed(t, socket)
	call := func(method, request, text string) {
		t.Helper()
		require.NoError(t, cc.Invoke(t.Context(), muxtest.Method(method), muxtest.Frame(t, request, text), &codec.Frame{}))
	}
	call("Put", "PutRequest", `book { title: "Tale" } shelf: "north"`)
	call("Bind", "GetRequest", `book_id: "7f"`)

	says(t, "dump", "-admin", filepath.Join(dir, "front.admin.sock"), file)
	late := filepath.Join(dir, "late.jsonl.zst")
	says(t, "dump", "-admin", filepath.Join(dir, "front.admin.sock"), "-until", "1h", late)
	assert.NotContains(t, says(t, "view", late), "Put", "no call began an hour ago")
	recent := filepath.Join(dir, "recent.jsonl.zst")
	says(t, "dump", "-admin", filepath.Join(dir, "front.admin.sock"), "-since", "1h", recent)
	assert.Contains(t, says(t, "view", recent), "Put")
	assert.ErrorContains(t, run(t.Context(), []string{"dump", "-since", "1m", "-until", "1h"}, &bytes.Buffer{}, &bytes.Buffer{}), "longer ago")
	shown := says(t, "view", file)
	assert.Regexp(t, `(?m) Put +primary +north/Tale 7f `, shown)
	assert.Regexp(t, `(?m) Bind +primary +north/Tale 7f `, shown)
	assert.Contains(t, says(t, "view", "-method", "Bind", "-id", "7f", "-o", "json", file), `"about":{"namespace":"north","name":"Tale","ids":["7f"]}`)
	assert.Equal(t, "criproxy: 0 of 2 calls in "+file+" match\n", says(t, "view", "-id", "8a", file), "and no titles")
	assert.Equal(t, "criproxy: 0 of 2 recorded calls match\n", says(t, "tail", "-past", "-id", "8a", "-admin", filepath.Join(dir, "front.admin.sock")))

	wrong := filepath.Join(dir, "wrong.yaml")
	require.NoError(t, os.WriteFile(wrong, append(library, "about:\n  Book.titel: name\n  Book.title: nam\n"...), 0o600))
	err := run(t.Context(), []string{"check", "-profile", wrong, "-proto", filepath.Join("..", "..", "internal", "testing", "muxtest", "library.proto")}, &bytes.Buffer{}, &bytes.Buffer{})
	require.Error(t, err)
	assert.ErrorContains(t, err, `about.Book.title: "nam": want id, name, namespace (did you mean "name"?)`)
	assert.Regexp(t, `wrong.yaml:\d+:3: about.Book.titel: .*\(did you mean "title"\?\)`, err.Error())
}
