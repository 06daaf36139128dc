package buffers_test

import (
	"bytes"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc/mem"

	"github.com/criproxy/criproxy/internal/base/buffers"
)

func TestOnFreeCallsDoneAfterTheLastReference(t *testing.T) {
	large := bytes.Repeat([]byte("x"), 10000)
	pooled := func() mem.Buffer {
		buf := bytes.Clone(large)
		return mem.NewBuffer(&buf, mem.NopBufferPool{})
	}
	var calls atomic.Int32
	f := buffers.OnFree(mem.BufferSlice{pooled(), mem.SliceBuffer("small"), pooled()}, func() { calls.Add(1) })
	assert.Equal(t, string(large)+"small"+string(large), string(f.Materialize()))
	f.Ref() // gRPC's, while it sends
	f.Free()
	assert.Zero(t, calls.Load(), "the buffers are still held")
	assert.Equal(t, 20005, f.Len())
	f.Free()
	assert.EqualValues(t, 1, calls.Load())

	buffers.OnFree(mem.BufferSlice{mem.SliceBuffer("small")}, func() { calls.Add(1) })
	assert.EqualValues(t, 2, calls.Load(), "references to small buffers are not counted")
}

func TestOnFreeNoticesForgottenBuffers(t *testing.T) {
	calls := make(chan struct{})
	func() {
		buf := make([]byte, 10000)
		buffers.OnFree(mem.BufferSlice{mem.NewBuffer(&buf, mem.NopBufferPool{})}, func() { close(calls) })
	}()
	for {
		runtime.GC()
		select {
		case <-calls:
			return
		case <-time.After(10 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatal("it was forgotten")
		}
	}
}
