package transport_test

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/summerwind/h2spec/config"
	"github.com/summerwind/h2spec/generic"
	"github.com/summerwind/h2spec/hpack"
	"github.com/summerwind/h2spec/http2"
	"github.com/summerwind/h2spec/spec"

	"github.com/criproxy/criproxy/internal/transport"
)

// TestH2Spec runs all cases of h2spec against the server, including the strict ones. The requests
// of h2spec are not gRPC calls: the server answers them with status 415 and a text, through the
// same flow control as messages.
func TestH2Spec(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := transport.NewServer(transport.ServerConfig{})
	go s.Serve(l, nil)
	t.Cleanup(s.Stop)
	c := &config.Config{
		Host: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port, Path: "/", Timeout: 20 * time.Second,
		MaxHeaderLen: 4000, Strict: true,
	}
	if only := os.Getenv("H2SPEC"); only != "" {
		c.Sections = strings.Split(only, ",")
	}
	passed := 0
	for _, root := range []*spec.TestGroup{generic.Spec(), http2.Spec(), hpack.Spec()} {
		passed += run(t, c, root)
	}
	t.Log(passed, "cases passed")
}

// run runs the cases of a group, and returns the number that passed.
func run(t *testing.T, c *config.Config, g *spec.TestGroup) (passed int) {
	for i, tc := range append(g.Tests, g.StrictTests...) {
		require.NoError(t, tc.Test(c, i+1))
		id := fmt.Sprintf("%s/%d", g.ID(), i+1)
		if tc.Result == nil {
			continue
		}
		switch {
		case tc.Result.Skipped:
			assert.Fail(t, id+" "+tc.Desc, "was skipped")
		case tc.Result.Failed:
			assert.Fail(t, id+" "+tc.Desc, "%v", tc.Result.Error)
		default:
			passed++
		}
	}
	for _, sub := range g.Groups {
		passed += run(t, c, sub)
	}
	return passed
}
