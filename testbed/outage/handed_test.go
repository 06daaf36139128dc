package outage_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/testing/mounttest"
)

// reload makes criproxy read its configuration with additional lines at the beginning, and waits until it has.
func (n *node) reload(t *testing.T, lines string) {
	t.Helper()
	at := n.mark(t)
	require.NoError(t, n.proxy.Configure(lines+n.yaml))
	n.awaitProxy(t, at, 10*time.Second, "Reloaded the configuration")
	n.say("criproxy has reloaded its configuration")
}

// handOver makes criproxy hand over to a new process, and waits until the old one has ended.
func (n *node) handOver(t *testing.T) {
	t.Helper()
	gone, err := n.proxy.HandOver(t.Context())
	require.NoError(t, err)
	n.say("criproxy has handed over")
	began := time.Now()
	require.Eventually(t, gone, 30*time.Second, 20*time.Millisecond, "the process before ends")
	n.say("the process before has ended after %s", seconds(time.Since(began)))
}

// These outages are long enough for a few relists of the kubelet after the change, and for a restart and a new pod on the
// other runtime.
func (n *node) changeInOutages(t *testing.T, also string, change func(t *testing.T, i int), kinds ...byte) {
	t.Helper()
	for i, kind := range kinds {
		n.suffer(t, outage{kind: kind, length: span(12, 30), also: also, harmless: true, during: func(t *testing.T) {
			change(t, i)
			n.awaitRelists(t, 3)
		}})
	}
}

// budgets are the values of listBudget: each reload uses a new one.
func (n *node) reloadBudget(t *testing.T, i int) {
	t.Helper()
	n.reload(t, []string{"listBudget: 1900ms\n", "listBudget: 1800ms\n"}[i%2])
}

func TestReloadsAndHandoversInAnOutageChangeNothing(t *testing.T) {
	t.Parallel()
	n := readyNode(t, "change", variant{})
	n.changeInOutages(t, "reloaded", n.reloadBudget, 'K', 'S')
	n.changeInOutages(t, "handed over", func(t *testing.T, _ int) { n.handOver(t) }, 'K', 'S')
	link := filepath.Join(n.proxy.Dir, "elsewhere")
	require.NoError(t, os.Symlink(n.two.Dir, link))
	n.changeInOutages(t, "another address", func(t *testing.T, _ int) {
		n.yaml = strings.Replace(n.yaml, n.two.Dir, link, 1)
		n.reload(t, "")
	}, 'K')
}

// The file is for crashes only.
func TestReloadsAndHandoversNeedNoFile(t *testing.T) {
	t.Parallel()
	for name, dir := range map[string]string{
		"nowrite": mounttest.Tmpfs(t, "a state folder in which no file can be made", "nr_inodes=1,mode=0700"),
		"nostate": "none",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := readyNode(t, name, variant{flags: []string{"-state-dir", dir}})
			n.changeInOutages(t, "reloaded, no file", n.reloadBudget, 'K', 'S')
			n.changeInOutages(t, "handed over, no file", func(t *testing.T, _ int) { n.handOver(t) }, 'K', 'S')
			if dir != "none" {
				files, err := os.ReadDir(dir)
				require.NoError(t, err)
				require.Empty(t, files, "there was none")
			}
		})
	}
}
