package criadapter_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/profile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var update = flag.Bool("update", false, "write testdata/routes.txt anew")

func TestEveryStringOfCRIHasARule(t *testing.T) {
	cfg, err := criadapter.Config(criadapter.Options{})
	require.NoError(t, err)
	fields, err := profile.FieldsOf(cfg.Profile, cfg.Schema)
	require.NoError(t, err)
	assert.Empty(t, fields.Unclassified(), "cri-api has fields that cri.yaml does not know. Does any of them hold a name that belongs to one runtime? "+
		"Then it goes under fields, else under harmless.")
}

// routes.txt lists what the director does with each method: read its diff when
// cri-api changes. `go test ./criadapter -update` writes it.
func TestRoutes(t *testing.T) {
	cfg, err := criadapter.Config(criadapter.Options{})
	require.NoError(t, err)
	cfg.Backends = []director.Backend{{}, {Name: "two.test"}}
	d, err := director.New(cfg)
	require.NoError(t, err)
	var got strings.Builder
	for _, f := range d.Routes() {
		fmt.Fprintf(&got, "%s\n  goes %s\n", f.Method, f.Goes)
		for _, p := range f.Request {
			fmt.Fprintf(&got, "  request %-9s %s\n", p.Kind, p.Path)
		}
		for _, p := range f.Reply {
			fmt.Fprintf(&got, "  reply   %-9s %s\n", p.Kind, p.Path)
		}
	}
	if *update {
		require.NoError(t, os.WriteFile("testdata/routes.txt", []byte(got.String()), 0o644))
	}
	want, err := os.ReadFile("testdata/routes.txt")
	require.NoError(t, err)
	assert.Equal(t, string(want), got.String())
	assert.Len(t, d.Routes(), 43, "methods of cri-api v0.37.2")
}

func TestAMisspeltDraftIsAMistake(t *testing.T) {
	cfg, err := criadapter.Config(criadapter.Options{})
	require.NoError(t, err)
	pods, containers := &cfg.Profile.Known.Lists[0], &cfg.Profile.Known.Lists[1]
	right := maps.Clone(pods.Draft)
	compile := func() error {
		_, err := backend.Bridge(nil, cfg.Profile.Known.Lists, cfg.Schema, cfg.Profile.Versions[0].Package)
		return err
	}
	require.NoError(t, compile())

	pods.Draft["lables"] = "config.labels"
	containers.Draft["labels"] = "config.lables"
	err = compile()
	assert.ErrorContains(t, err, "draft.lables: no item of ListPodSandbox has this field")
	assert.ErrorContains(t, err, "draft.labels: no request that creates an item has the field config.lables")

	cfg.Profile = cfg.Profile.Fit(cfg.Schema)
	assert.Equal(t, right, cfg.Profile.Known.Lists[0].Draft, "without what no version has, and with what only v1 has")
	assert.NoError(t, compile())
}
