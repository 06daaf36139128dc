package telemetry

import (
	"sync"

	logs "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/protobuf/proto"
)

// maxQueued bounds the memory of records that wait, as they are serialized. It holds the records of a quiet node for
// more than an hour.
const maxQueued = 4 << 20

// A queue holds records until they are sent. When it is full, the oldest go. Any goroutine may put records; one takes them. It never
// waits: who takes waits for news, which may come for records that are taken already, and comes at least once after each put.
type queue struct {
	news chan struct{} // has room for one; gets a value when a record comes

	mu      sync.Mutex
	records []*logs.LogRecord
	sizes   []int // of each record, so that each is measured once
	size    int   // of all
}

// put appends a record, and returns how many it has displaced.
func (q *queue) put(r *logs.LogRecord) (dropped int) {
	size := proto.Size(r)
	q.mu.Lock()
	for q.size += size; q.size > maxQueued && dropped < len(q.records); dropped++ {
		q.size -= q.sizes[dropped]
	}
	q.records, q.sizes = append(q.records[dropped:], r), append(q.sizes[dropped:], size)
	q.mu.Unlock()
	select {
	case q.news <- struct{}{}:
	default:
	}
	return dropped
}

// take removes the oldest records, so many that they have at most so many bytes, but one at least.
func (q *queue) take(records, bytes int) []*logs.LogRecord {
	q.mu.Lock()
	defer q.mu.Unlock()
	n, size := 0, 0
	for n < min(len(q.records), records) && (n == 0 || size+q.sizes[n] <= bytes) {
		size += q.sizes[n]
		n++
	}
	taken := q.records[:n:n]
	q.records, q.sizes, q.size = q.records[n:], q.sizes[n:], q.size-size
	return taken
}

func (q *queue) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.records)
}
