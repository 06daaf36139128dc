package server

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/config"
)

// collectors is the pattern of fluent-bit's kubernetes filter, and of fluentd's, for the files in
// /var/log/containers.
var collectors = regexp.MustCompile(`^([a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*)_([^_]+)_(.+)-([a-z0-9]{64})\.log$`)

// The test checks the table in docs/ids.md, except for rows that follow from the form of the ids.
func TestWhatWorksWithWhichIDs(t *testing.T) {
	for _, c := range []struct {
		name, ids                string
		short, matched, sameInOS bool
	}{
		{"kata.io", config.PrefixIDs, true, false, false},
		{"virtlet.cloud", config.PrefixIDs, false, false, false},
		{"virtlet.cloud", config.NativeIDs, true, true, true},
	} {
		t.Run(c.ids+" "+c.name, func(t *testing.T) {
			n := newNode(t, func(cfg *config.Config) { cfg.IDs = c.ids }, machineConfig{}, machineConfig{backend: config.Backend{Name: c.name}})
			n.run(1, "other", 1)
			p := n.run(1, "vm", 1)
			id := p.containers[0]
			native := id[strings.LastIndex(id, "_")+1:]

			const crictl = 13
			got, err := n.ContainerStatus(n.ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: id[:crictl]})
			assert.Equal(t, c.short, err == nil && got.GetStatus().GetId() == id, "13 characters: %v", err)
			log := "vm_default_main-" + id + ".log"
			assert.Equal(t, c.matched, collectors.MatchString(log), "the pattern of collectors")
			assert.Equal(t, id, strings.TrimSuffix(log[strings.LastIndex(log, "-")+1:], ".log"), "what kubelet takes for the id when it cleans up links")
			assert.Equal(t, c.sameInOS, id == native, "the id in the name of the cgroup")
			_, err = n.ExecSync(n.ctx(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"true"}})
			assert.NoError(t, err, "the whole id")
		})
	}
}
