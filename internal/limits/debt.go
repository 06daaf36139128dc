package limits

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// debt is what replies to one connection take over the memory that there is: nobody knows
// how long a reply is before it comes, and what has come is sent. While there is debt, no
// new call of that connection begins. The zero debt is none.
type debt struct {
	mu   sync.Mutex
	n    int64
	paid chan struct{} // closed when there is none any more; nil if there never was
}

func (d *debt) add(n int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.n == 0 {
		d.paid = make(chan struct{})
	}
	d.n += n
}

func (d *debt) pay(n int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.n -= n; d.n == 0 {
		close(d.paid)
	}
}

// wait waits until there is none, and returns how much there is if that takes too long.
func (d *debt) wait(ctx context.Context) int64 {
	d.mu.Lock()
	n, paid := d.n, d.paid
	d.mu.Unlock()
	if n == 0 {
		return 0
	}
	reclaim()
	ctx, cancel := context.WithTimeout(ctx, MemoryWait)
	defer cancel()
	select {
	case <-paid:
		return 0
	case <-ctx.Done():
		return n
	}
}

// reclaimed is the second in which reclaim last did something.
var reclaimed atomic.Int64

// reclaim reclaims memory, once a second at most. What a client has left unread is not
// freed by gRPC: it is given back when it is reclaimed, for which a process that does
// nothing else has two minutes.
func reclaim() {
	now := time.Now().Unix()
	if last := reclaimed.Load(); now != last && reclaimed.CompareAndSwap(last, now) {
		runtime.GC()
	}
}
