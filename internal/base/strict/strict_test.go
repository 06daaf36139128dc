package strict_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/base/strict"
)

type config struct {
	Listen   string            `yaml:"listen"`
	Backends []backend         `yaml:"backends"`
	Budget   time.Duration     `yaml:"budget"`
	Labels   map[string]string `yaml:"labels"`
	Common   `yaml:",inline"`
}

type backend struct {
	Name    string `yaml:"name"`
	Address string `yaml:"address"`
	Port    int    `yaml:"port"`
	On      *bool  `yaml:"on"`
}

type Common struct {
	State string `yaml:"state"`
}

func TestAValidDocumentIsRead(t *testing.T) {
	var c config
	require.NoError(t, strict.Unmarshal([]byte(`
listen: /run/a.sock
budget: 1500ms
state: /var/lib/x
labels: {a: b}
backends:
- address: /run/b.sock
  on: true
- &two {name: two.test, address: /run/c.sock, port: 8}
- *two
`), &c))
	assert.Equal(t, 1500*time.Millisecond, c.Budget)
	assert.Equal(t, "/var/lib/x", c.State)
	assert.Len(t, c.Backends, 3)
	assert.Equal(t, 8, c.Backends[2].Port)
	assert.True(t, *c.Backends[0].On)
}

func TestAllMistakesAreNamedAtOnce(t *testing.T) {
	c := config{Listen: "unchanged"}
	err := strict.Unmarshal([]byte(`
listne: /run/a.sock
budget: soon
labels: [a]
backends:
- adress: /run/b.sock
  port: many
  on: perhaps
- /run/c.sock
- {name: a, name: b}
state: {a: b}
stateFolder: /var/lib/x
`), &c)
	assert.EqualError(t, err, `2:1: listne: unknown key (did you mean "listen"?)
3:9: budget: "soon": want a duration such as 500ms or 2s
4:9: labels: want keys and values, not a list
6:3: backends[0].adress: unknown key (did you mean "address"?)
7:9: backends[0].port: "many": want a whole number
8:7: backends[0].on: "perhaps": want a bool: true or false
9:3: backends[1]: "/run/c.sock": want keys and values
10:13: backends[2].name: is already set in line 10
11:8: state: want a string, not keys and values
12:1: stateFolder: unknown key (did you mean "state"?)`)
	assert.Equal(t, config{Listen: "unchanged"}, c)
}

// A mistake in the first value was said to be in the line of the second.
func TestTheFirstValueOfARepeatedKeyCounts(t *testing.T) {
	var c config
	text := []byte("listen: 5\nstate: x\nlisten: /y\n")
	assert.EqualError(t, strict.UnmarshalRest(text, &c), "3:1: listen: is already set in line 1")
	assert.Equal(t, "5", c.Listen)
	assert.EqualError(t, strict.PlacesIn(text).Locate(errors.New(`listen: "5" is not an absolute path`)), `1:1: listen: "5" is not an absolute path`)
}

func TestATabAsIndentationIsCalledOne(t *testing.T) {
	for text, want := range map[string]string{
		"\tlisten: /run/a.sock\n":                              "1:1: the line is indented with a tab; YAML wants spaces",
		"listen: /run/a.sock\n\tstate: x\n":                    "2:1: the line is indented with a tab; YAML wants spaces",
		"backends:\n\t- name: a\n":                             "2:1: the line is indented with a tab; YAML wants spaces",
		"backends:\n- address: /run/a.sock\n\tname: x\n":       "3:1: the line is indented with a tab; YAML wants spaces",
		"backends:\n  -\taddress: /run/a.sock\n":               "2:4: the line is indented with a tab; YAML wants spaces",
		"backends:\n  - address: /run/a.sock\n    \tname: x\n": "3:5: the line is indented with a tab; YAML wants spaces",
		"listen: @a\n": "1: found character that cannot start any token",
		"labels:\n  a: |\n    text\n    \tcode\nlisten: /run/a.sock\nb: [": "", // a tab in a text; the mistake is elsewhere
	} {
		var c config
		err := strict.Unmarshal([]byte(text), &c)
		if want == "" {
			assert.NotContains(t, err.Error(), "tab", text)
			continue
		}
		assert.EqualError(t, err, want, text)
	}
}

func TestMistakesComeInTheOrderOfLines(t *testing.T) {
	in := func(text string) error { return errors.New(text) }
	err := strict.InOrder(errors.Join(in("a.yaml:10:1: ten"), in("-flag: no place"), in("b.yaml:1:1: another file\na.yaml:9: no column"), in("a.yaml:9:12: twelve"), in("a.yaml:9:3: three")))
	assert.EqualError(t, err, "a.yaml:9: no column\na.yaml:9:3: three\na.yaml:9:12: twelve\na.yaml:10:1: ten\nb.yaml:1:1: another file\n-flag: no place")
	assert.EqualError(t, strict.InOrder(errors.Join(in("2:1: b"), in("1:4: a"))), "1:4: a\n2:1: b")
	assert.NoError(t, strict.InOrder(nil))
}

func TestASyntaxErrorNamesItsLine(t *testing.T) {
	var c config
	assert.ErrorContains(t, strict.Unmarshal([]byte("listen: 'a\nb: c"), &c), "2: ")
	assert.EqualError(t, strict.Unmarshal([]byte("listen: a\n---\nlisten: b\n"), &c), "2:1: a second document begins here; want only one")
	assert.NoError(t, strict.Unmarshal(nil, &c))
	assert.EqualError(t, strict.Unmarshal([]byte("[a, b]"), &c), "1:1: want keys and values, not a list")
}
