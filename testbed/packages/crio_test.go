package packages

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// CRI-O used to keep its other path, so that no process listened on its own path any more.
func TestRemovingThePackageGivesCRIOItsPathBack(t *testing.T) {
	needs(t, "dpkg", "rpm", "busybox")
	for _, m := range managers(t) {
		t.Run(m.ending, func(t *testing.T) {
			r := newRoot(t, true)
			m.install(r)
			const dropIn = "/etc/crio/crio.conf.d/zz-criproxy.conf" // the file that install -takeover /run/crio/crio.sock makes
			require.NoError(t, os.MkdirAll(r.at("/etc/crio/crio.conf.d"), 0o755))
			r.write(dropIn, "[crio.api]\nlisten = \"/run/crio/crio.runtime.sock\"\n")
			r.told()
			m.removal(r)
			assert.NoFileExists(t, r.at(dropIn))
			assert.Contains(t, r.told(), "restart crio.service")
		})
	}
}
