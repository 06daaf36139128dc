package plugins_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/internal/plugins"
)

// became waits until the latest condition of a plugin that was reported is state, which is what w.state says, and
// returns it. "" stands for a plugin without a file.
func (w *world) became(name, state string) (last plugins.PluginState) {
	w.Helper()
	w.until(name+" is "+state, func() bool {
		last = plugins.PluginState{}
		all := happened[plugins.States](w)
		for _, c := range all[len(all)-1] {
			if c.Name == name+".json" {
				last = c
			}
		}
		now := w.state(name)
		return last.State == state && now.State == state && now.Error == last.Error
	})
	return last
}

// conditions returns the conditions of plugins that were reported, each that differs from the one of the plugin before.
func (w *world) conditions() []string {
	var all []string
	before := map[string]string{}
	for _, reported := range happened[plugins.States](w) {
		for _, c := range reported {
			if c.State != "connecting" && c.State != before[c.Name] {
				before[c.Name] = c.State
				all = append(all, c.Name+" "+c.State)
			}
		}
	}
	return all
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
	w.became("p", "down")
	w.stop()
	w.start()
	w.became("p", "down")
	kill := serve()
	w.became("p", "ready")
	kill()
	w.became("p", "down")
	serve()
	w.became("p", "ready")

	w.file("p", `{"remote-endpoint": 1}`)
	w.until("the mistake is there", func() bool { return w.state("p").Error != "" })
	w.file("q", `{"remote-endpoint": 1}`)
	w.became("q", "broken")
	require.NoError(t, os.Remove(filepath.Join(w.cfg.Folder, "p.json")))
	w.became("p", "")
	assert.Equal(t, []string{"p.json down", "p.json ready", "p.json down", "p.json ready", "q.json broken"}, w.conditions(),
		"a file that is wrong now changes nothing for the plugin that it described before")
}

func TestAPluginThatLeavesIsRemovedAndNotDown(t *testing.T) {
	w := newWorld(t)
	var want []string
	for i := range 5 {
		name := fmt.Sprint("p", i)
		w.plug(annotate(name, "tier", "x"))()
		w.became(name, "")
		want = append(want, name+".json ready")
	}
	assert.Equal(t, want, w.conditions())
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
		if c := w.became("p", state); state == "down" {
			assert.Contains(t, c.Error, "accepts connections, and has answered nothing for ")
		}
	}
}

// A process that was killed just after it had accepted a connection was said to accept connections, and to answer nothing.
func TestTheReasonWhyAPluginIsDownIsWhatTheSocketDoes(t *testing.T) {
	each := func(serve func(net.Conn)) func(net.Listener) {
		return func(l net.Listener) {
			for {
				nc, err := l.Accept()
				if err != nil {
					return
				}
				serve(nc)
				nc.Close()
			}
		}
	}
	for _, one := range []struct {
		name, says string
		serve      func(net.Listener)
	}{
		{"killed", "connection refused", func(l net.Listener) {
			nc, err := l.Accept()
			l.Close()
			if assert.NoError(t, err) {
				nc.Close()
			}
		}},
		{"killed before it accepts", "connection refused", func(l net.Listener) {
			raw, err := l.(*net.UnixListener).SyscallConn()
			if !assert.NoError(t, err) {
				return
			}
			_ = raw.Control(func(fd uintptr) { // until a connection waits
				_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(patience.Milliseconds()))
			})
			l.Close()
		}},
		{"closes", "accepts connections, and closes them before it answers", each(func(net.Conn) {})},
		{"speaks HTTP/1", "accepts connections, and does not answer as a plugin does", each(func(nc net.Conn) {
			fmt.Fprint(nc, "HTTP/1.1 400 Bad Request\r\n\r\n")
			_, _ = io.Copy(io.Discard, nc) // until gRPC closes it
		})},
	} {
		t.Run(one.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			path := filepath.Join(w.dir, "p.sock")
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
			require.NoError(t, err)
			l.SetUnlinkOnClose(false)
			served := make(chan struct{})
			go func() { defer close(served); one.serve(l) }()
			t.Cleanup(func() { l.Close(); <-served })
			w.file("p", fmt.Sprintf(`{"remote-endpoint": %q, "runtime-hooks": ["PreRunPodSandbox"]}`, path))
			w.became("p", "down")
			for _, all := range happened[plugins.States](w) {
				for _, c := range all {
					if c.State == "down" {
						assert.Contains(t, c.Error, one.says)
					}
				}
			}
		})
	}
}
