package critest

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/testing/markdown"
	"github.com/criproxy/criproxy/internal/testing/untested"
	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/internal/junit"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

func TestMain(m *testing.M) {
	testbed.Limit = 14 * time.Minute
	testbed.Main(m, append(build.ForContainers(), build.Critest)...)
}

var (
	all    = flag.Bool("all", false, "run all specs, on each runtime, which takes half an hour")
	on     = flag.String("on", "2.4", "what to run on: versions of containerd, or crio, such as `1.7,2.4,crio`")
	report = flag.String("report", "", "write what came of -all into `FILE`, docs/evidence/conformance.md")
)

// fast are the specs of the gate, by parts of their names.
var fast = []string{"Idempotence", "Image Manager", "Image Consistency", "support exec", "support attach"}

// second is the name of the second runtime.
const second = "two.test"

// A socket is the socket of a runtime.
type socket interface {
	Socket() string
	Endpoint() string
}

// A way is how critest gets to a runtime through criproxy.
type way struct {
	name   string
	ids    string
	second bool // pods go to the second runtime, by newPodsTo
}

var ways = []way{
	{"as primary, prefixed ids", "prefix", false},
	{"as primary, native ids", "native", false},
	{"as second, prefixed ids", "prefix", true},
	{"as second, native ids", "native", true},
}

// otherwise holds the specs that need not pass on a second runtime, with reasons.
var otherwise = map[string]string{
	"[It] [k8s.io] Image Identifier Consistency should return the same image identifier across all APIs [Conformance] [Serial]":                       pulledElsewhere,
	"[It] [k8s.io] Image Identifier Consistency should return the same image identifier when pulled from different registries [Conformance] [Serial]": pulledElsewhere,
}

const pulledElsewhere = "it pulls an image before there is a pod, which goes to the primary, and makes a container of it on the second runtime; kubelet says with each pull for which pod it is"

// The specs that pass directly on a runtime must pass through criproxy, in each way.
func TestCritestPassesAsItDoesDirectly(t *testing.T) {
	focus := strings.Join(fast, "|")
	if *all {
		focus = ""
	}
	reg := testbed.NewRegistry(t)
	if err := reg.PushCritest(); err != nil {
		untested.Skip(t, err)
	}
	compared := junit.Comparison{Columns: []string{"runtime", "how"}, Reasons: otherwise}
	for kind := range strings.SplitSeq(*on, ",") {
		t.Run(kind, func(t *testing.T) {
			t.Cleanup(func() {
				if *report != "" {
					assert.NoError(t, markdown.Between(*report, tableBegin, tableEnd, compared.Table()+compared.Lists()))
				}
			})
			title := "containerd " + kind
			start := func(name string) socket {
				return testbed.NewContainerd(t, reg, runtimes.Config{Name: name, Version: kind, Mirrors: runtimes.CritestMirrors(reg.Addr)})
			}
			if kind == "crio" {
				title = "CRI-O"
				start = func(name string) socket {
					return testbed.NewCRIO(t, reg, runtimes.CRIOConfig{Name: name, Mirrors: runtimes.CritestMirrors(reg.Addr)})
				}
			}
			// Both of one kind, because the primary's features count for both.
			primary, other := start("one"), start("two")
			direct := critest(t, primary.Endpoint(), focus)
			require.Positive(t, direct.Count(junit.Passed), "on %s itself", title)
			compared.Add(direct, nil, title, "directly")
			for _, w := range ways {
				t.Run(w.name, func(t *testing.T) {
					// critest requests images without naming a pod, so an image that the primary has would not be pulled
					// to the second.
					forgetImages(t, primary, other)
					through := w.critest(t, primary, other, focus)
					compared.Add(through, direct, title, w.name)
					for spec, was := range direct {
						if is := through[spec]; was.State == junit.Passed && (!w.second || otherwise[spec] == "") {
							assert.Equal(t, junit.Passed, is.State, "%s: %s", spec, is.Why)
						}
					}
				})
			}
		})
	}
	t.Logf("\n%s", compared.Table())
}

// forgetImages removes the images that earlier runs have left.
func forgetImages(t *testing.T, all ...socket) {
	t.Helper()
	for _, runtime := range all {
		client, err := runtimes.Images(t.Context(), runtime.Endpoint())
		require.NoError(t, err)
		images, err := client.ListImages(t.Context(), nil)
		require.NoError(t, err)
		for _, image := range images {
			if !image.Pinned {
				require.NoError(t, client.RemoveImage(t.Context(), &runtimeapi.ImageSpec{Image: image.Id}))
			}
		}
		client.Close(t.Context())
	}
}

// critest runs critest in the way w.
func (w way) critest(t *testing.T, primary, other socket, focus string) junit.Outcomes {
	t.Helper()
	yaml := fmt.Sprintf("ids: %s\nbackends:\n- address: %s\n- {name: %s, address: %s}\n", w.ids, primary.Socket(), second, other.Socket())
	if w.second {
		yaml += "newPodsTo: " + second + "\n"
	}
	return critest(t, testbed.NewProxy(t, yaml).Endpoint(), focus)
}

// The table is between these lines.
const (
	tableBegin = "<!-- made by make conformance -->\n"
	tableEnd   = "<!-- to here -->\n"
)
