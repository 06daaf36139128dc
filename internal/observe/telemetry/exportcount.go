package telemetry

import (
	"maps"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/observe/admin"
)

// Why records are lost.
const (
	lostFull    = "full"    // too many waited
	lostRefused = "refused" // the store did not take them, or its answer cannot be read
	lostStopped = "stopped" // the process ended, or the store was taken out of the configuration
)

// WhyLost are all of them.
var WhyLost = []string{lostFull, lostRefused, lostStopped}

// counters count records, and log when sending begins to fail and works again. Each record that was put into the queue is counted
// once in the end: as sent, or as lost for one reason. The zero value counts from zero. It is safe for concurrent use.
type counters struct {
	mu     sync.Mutex
	sent   uint64
	lostBy map[string]uint64 // :: why
	since  time.Time         // since when sending fails; zero if it does not
	err    string
	logged map[string]time.Time // :: why → when records were logged as lost
	before uint64               // records that were lost when sending began to fail
}

// delivered counts records that the store has taken.
func (c *counters) delivered(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent += uint64(n)
	if !c.since.IsZero() {
		klog.InfoS("Calls are exported again", "after", time.Since(c.since).Round(time.Second), "lostRecords", c.lost0()-c.before)
	}
	c.since, c.err = time.Time{}, ""
}

// fails notes that the store cannot be reached, or asks to try again.
func (c *counters) fails(err error, url string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err.Error()
	if c.since.IsZero() {
		c.since, c.before = time.Now(), c.lost0()
		klog.ErrorS(err, "Calls cannot be exported now; their records wait, and the oldest are lost when there are too many", "url", url)
	}
}

// lost counts records that no store gets.
func (c *counters) lost(why string, n int, err error) {
	if n == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lostBy == nil {
		c.lostBy, c.logged = map[string]uint64{}, map[string]time.Time{}
	}
	c.lostBy[why] += uint64(n)
	if err != nil {
		c.err = err.Error()
	}
	if time.Since(c.logged[why]) > time.Minute {
		c.logged[why] = time.Now()
		klog.ErrorS(err, "Records of calls are lost, because they are not exported; calls are not affected", "why", why, "records", n)
	}
}

// lost0 returns how many records were lost. c.mu is held.
func (c *counters) lost0() (n uint64) {
	for _, one := range c.lostBy {
		n += one
	}
	return n
}

func (c *counters) state() admin.Export {
	c.mu.Lock()
	defer c.mu.Unlock()
	return admin.Export{Sent: c.sent, Lost: maps.Clone(c.lostBy), Failing: c.since, Error: c.err}
}
