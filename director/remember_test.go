package director_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/director/dial"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

func TestTheCacheAnswersForAServerThatIsGone(t *testing.T) {
	dir := muxtest.Dir(t)
	cfg := director.Config{Profile: muxtest.LibraryProfile(t), Schema: muxtest.Library}
	var servers []*muxtest.Server
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 4)
	t.Cleanup(func() {
		stop()
		for range 4 {
			assert.NoError(t, <-ended)
		}
	})
	for i, name := range []string{"", "beta.io"} {
		s := muxtest.Serve(t, filepath.Join(dir, name+".sock"), shelf(`books {id: "1"}`))
		servers = append(servers, s)
		conn, err := dial.New(dial.Config{GRPC: muxtest.OverGRPC, Name: name, Address: s.Path, Profile: cfg.Profile, Schema: cfg.Schema})
		require.NoError(t, err)
		b, run, err := director.Remember(director.Backend{Name: name, Conn: conn}, cfg, director.MemoryConfig{Primary: i == 0, Absent: conn.Absent})
		require.NoError(t, err)
		go func() { ended <- run(ctx) }()
		go func() { ended <- conn.Run(ctx) }()
		cfg.Backends = append(cfg.Backends, b)
	}
	d := muxtest.New(t, cfg)
	listed := func() (string, error) {
		reply := &codec.Frame{}
		err := d.Invoke(ctx, muxtest.Method("List"), &codec.Frame{}, reply)
		return muxtest.Text("ListResponse", reply), err
	}
	const both = `books {id: "1"} books {id: "beta.io__1"}`
	assert.Eventually(t, func() bool { got, err := listed(); return err == nil && got == both }, 20*time.Second, 10*time.Millisecond)
	servers[1].Stop()
	for range 20 {
		got, err := listed()
		require.NoError(t, err)
		assert.Equal(t, both, got)
	}
}
