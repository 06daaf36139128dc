package profile_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/profile"
)

const notes = `
versions: [{package: notes.v1}]
names:
  note: {front: "{backend}__{name}", bare: primary}
  tag: {front: "{backend}/{name}", bare: anyone}
fields: {Note.id: note}
methods:
  List*: {all: concat}
reads: ["List*", Get]
quiet: {"List*": 5}
`

func Example() {
	p, err := profile.Parse([]byte(notes))
	if err != nil {
		fmt.Println(err)
	}
	fmt.Println(p.LogLevel("/notes.v1.Notes/ListNotes"), p.LogLevel("/notes.v1.Notes/Put"))
	fmt.Println(p.Bare("beta.io__7f"))
	_, err = profile.Parse([]byte("versions: [{package: notes.v1}]\nfields: {Note.id: nott}"))
	fmt.Println(err)
	// Output:
	// 5 3
	// 7f
	// 2:10: fields.Note.id: "nott" is neither under names nor under edits
}

func TestBareIsTheNameBehindAPrefix(t *testing.T) {
	p, err := profile.Parse([]byte(notes))
	require.NoError(t, err)
	assert.Equal(t, "__", p.Separator())
	assert.Equal(t, "7f", p.Bare("beta.io__7f"))
	assert.Empty(t, p.Bare("7f"))
	assert.Empty(t, p.Bare("docker.io/library/busybox"), "the front name of a tag need not have a prefix")
}

func TestMistakesAreNamedAtOnceWithTheirLines(t *testing.T) {
	_, err := profile.Parse([]byte(notes + "unimplemented: ['']\nvolatile: ['[']\n"))
	assert.EqualError(t, err, `11:17: unimplemented[0]: invalid pattern "": want one such as List*`+"\n"+
		`12:12: volatile[0]: invalid pattern "[": want one such as List*`)
}

func TestExtendAddsToListsOfPatterns(t *testing.T) {
	p, err := profile.Parse([]byte(notes))
	require.NoError(t, err)
	rules, err := profile.ParseRules([]byte("reads: [Peek]\nvolatile: ['*.time']\nknown: {stamps: ['*.time']}"))
	require.NoError(t, err)
	more, err := p.Extend(rules)
	require.NoError(t, err)
	assert.Equal(t, []string{"List*", "Get", "Peek"}, more.Reads)
	assert.Equal(t, []string{"*.time"}, more.Volatile)
	assert.Equal(t, []string{"*.time"}, more.Known.Stamps)
	assert.Equal(t, []string{"List*", "Get"}, p.Reads, "the profile is as it was")
}
