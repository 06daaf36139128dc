package limits

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// debt counts the bytes of replies to one connection that exceed the memory for messages. The
// length of a reply is unknown before it comes, and a reply that has come is sent. While there
// is debt, no new call of that connection begins. The zero value is no debt.
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

// wait waits until the debt is paid. It returns the bytes that are left if ctx ends first, or
// memoryWait passes.
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

// reclaimed is the second in which reclaim last collected garbage.
var reclaimed atomic.Int64

// reclaim collects garbage, at most once a second. gRPC does not free the replies that a client
// left unread: only the collector does, and in an idle process it may take two minutes to run.
func reclaim() {
	now := time.Now().Unix()
	if last := reclaimed.Load(); now != last && reclaimed.CompareAndSwap(last, now) {
		runtime.GC()
	}
}
