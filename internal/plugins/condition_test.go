package plugins_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/internal/plugins"
)

// became waits until the latest condition of a plugin that was reported is state, which is what w.state says, and
// returns it.
func (w *world) became(name, state string) (last plugins.Changed) {
	w.Helper()
	w.until(name+" is "+state, func() bool {
		for _, e := range happened[plugins.Changed](w) {
			if e.Plugin == name+".json" {
				last = e
			}
		}
		return last.State == state
	})
	if now := w.state(name); state != "removed" {
		assert.Equal(w, state, now.State)
		if last.Err != nil {
			assert.Equal(w, now.Error, last.Err.Error())
		}
	}
	return last
}

// A plugin that died was in no event until a call asked it, and one that came back likewise. At each start a dead plugin
// was said to answer.
func TestTheConditionOfAPluginNeedsNoCall(t *testing.T) {
	w := newWorld(t)
	path := filepath.Join(w.dir, "p.sock")
	serve := func() (kill func()) {
		l, err := net.Listen("unix", path)
		require.NoError(t, err)
		s := grpc.NewServer()
		return background(t, func(ctx context.Context) error {
			context.AfterFunc(ctx, s.Stop)
			return s.Serve(l)
		})
	}
	w.file("p", fmt.Sprintf(`{"remote-endpoint": %q, "runtime-hooks": ["PreRunPodSandbox"]}`, path))
	assert.Zero(t, w.became("p", "down").Since)
	w.stop()
	w.start()
	w.until("it is down again", func() bool { return len(happened[plugins.Changed](w)) == 2 })
	down := w.became("p", "down")
	kill := serve()
	ready := w.became("p", "ready")
	assert.Equal(t, down.At, ready.Since)
	kill()
	assert.Equal(t, ready.At, w.became("p", "down").Since)
	serve()
	w.became("p", "ready")

	w.file("p", `{"remote-endpoint": 1}`)
	w.until("the mistake is there", func() bool { return w.state("p").Error != "" })
	w.file("q", `{"remote-endpoint": 1}`)
	w.became("q", "broken")
	require.NoError(t, os.Remove(filepath.Join(w.cfg.Folder, "p.json")))
	w.became("p", "removed")
	var states []string
	for _, e := range happened[plugins.Changed](w) {
		states = append(states, e.Plugin+" "+e.State)
	}
	assert.Equal(t, []string{
		"p.json down", "p.json down", "p.json ready", "p.json down", "p.json ready",
		"q.json broken", "p.json removed",
	}, states, "a file that is wrong now changes nothing for the plugin that it described before")
}

func TestAPluginThatLeavesIsRemovedAndNotDown(t *testing.T) {
	w := newWorld(t)
	for i := range 5 {
		name := fmt.Sprint("p", i)
		w.plug(annotate(name, "tier", "x"))()
		w.became(name, "removed")
	}
	assert.Len(t, happened[plugins.Changed](w), 10)
}

func TestAPluginThatHangsIsDownUntilItAnswers(t *testing.T) {
	w := newWorld(t)
	w.timeout = 100 * time.Millisecond
	var hangs atomic.Bool
	w.raw("p", "Ignore", []string{"PreRunPodSandbox"}, func(ctx context.Context, _ string, _ []byte) ([]byte, error) {
		if hangs.Load() {
			<-ctx.Done()
		}
		return nil, ctx.Err()
	})
	w.plugins.HangsAfter("p.json", 250*time.Millisecond)
	pods := 0
	for _, state := range []string{"down", "ready"} {
		hangs.Store(state == "down")
		w.until("a call finds that it is "+state, func() bool {
			pods++
			w.run(podConfig(fmt.Sprint("web", pods)))
			return w.state("p").State == state
		})
		w.became("p", state)
	}
	assert.ErrorContains(t, happened[plugins.Changed](w)[1].Err, "accepts connections, and has answered nothing for ")
}
