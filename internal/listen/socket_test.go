package listen

import (
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/criproxy/criproxy/internal/config"
)

// meetingListener is a listener whose Close returns when that of as many is called as
// missing says, to all of them in the same moment.
type meetingListener struct {
	net.Listener
	missing *atomic.Int64
}

func (l meetingListener) Close() error {
	for l.missing.Add(-1); l.missing.Load() > 0; {
		runtime.Gosched() // not a lock: who is woken is late
	}
	return nil
}

// A reload that takes a listener out closes its socket while gRPC, which notices, does the
// same. Two that met panicked, and with them the process.
func TestASocketMayBeClosedByTwoAtOnce(t *testing.T) {
	for range 50000 {
		var missing atomic.Int64
		missing.Store(2)
		s := New(meetingListener{missing: &missing}, config.Listener{})
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() { assert.NotPanics(t, func() { _ = s.Close() }) })
		}
		both.Wait()
		if t.Failed() {
			return
		}
	}
}
