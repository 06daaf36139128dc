package strict_test

import (
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
`), &c)
	assert.EqualError(t, err, `2:1: listne: unknown key (did you mean "listen"?)
3:9: budget: is "soon", want a duration such as 500ms or 2s
4:9: labels: is a list, want keys and values
6:3: backends[0].adress: unknown key (did you mean "address"?)
7:9: backends[0].port: is "many", want a whole number
8:7: backends[0].on: is "perhaps", want a bool: true or false
9:3: backends[1]: is "/run/c.sock", want keys and values
10:13: backends[2].name: is already set in line 10
11:8: state: is keys and values, want a string`)
	assert.Equal(t, config{Listen: "unchanged"}, c)
}

func TestASyntaxErrorNamesItsLine(t *testing.T) {
	var c config
	assert.ErrorContains(t, strict.Unmarshal([]byte("listen: 'a\nb: c"), &c), "2: ")
	assert.EqualError(t, strict.Unmarshal([]byte("listen: a\n---\nlisten: b\n"), &c), "2:1: a second document begins here; want only one")
	assert.NoError(t, strict.Unmarshal(nil, &c))
	assert.EqualError(t, strict.Unmarshal([]byte("[a, b]"), &c), "1:1: is a list, want keys and values")
}
