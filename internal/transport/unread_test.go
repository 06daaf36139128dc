package transport_test

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/internal/transport"
)

// A client that makes calls and reads nothing gets as many replies as it may have calls at once.
// The server refuses the next calls, and then closes the connection.
func TestUnreadStatusesAreBounded(t *testing.T) {
	why := strings.Repeat("x", 4<<10)
	for name, fields := range map[string][]string{"calls that fail": nil, "calls behind their deadline": {"grpc-timeout", "1u"}} {
		t.Run(name, func(t *testing.T) {
			l := servedAs(t, transport.ServerConfig{MaxStreams: 1000, Handler: func(_ any, ss grpc.ServerStream) error {
				return status.Error(codes.Aborted, why)
			}})
			p := rawClient(t, l)
			before := spent().heap
			id := uint32(1)
			for range 100 {
				for range 200 {
					p.headers(id, true, p.request(fields...))
					id += 2
				}
				_ = p.nc.SetWriteDeadline(time.Now().Add(patience))
				if p.say() != nil {
					break // the server has closed the connection
				}
				time.Sleep(5 * time.Millisecond) // slow enough for the handlers to keep up; nothing waits for it
			}
			runtime.GC()
			grown := spent().heap - before
			t.Logf("heap +%d KB after %d calls", grown>>10, id/2)
			assert.Less(t, grown, int64(16<<20))
		})
	}
}
