package codec_test

import (
	"bytes"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc/mem"

	"github.com/criproxy/criproxy/codec"
)

func TestOnFreeTellsOnceWhenNobodyHoldsTheBytes(t *testing.T) {
	large := bytes.Repeat([]byte("x"), 10000)
	pooled := func() *codec.Frame {
		buf := bytes.Clone(large)
		return codec.NewPooledFrame(&buf, mem.NopBufferPool{})
	}
	var told atomic.Int32
	f := codec.Concat([]*codec.Frame{pooled(), codec.NewFrame([]byte("small")), pooled()})
	f.OnFree(func() { told.Add(1) })
	assert.Equal(t, string(large)+"small"+string(large), string(f.AppendTo(nil, 1<<20)))
	sent := f.Ref()
	f.Free()
	assert.Zero(t, told.Load(), "somebody holds them")
	assert.Equal(t, 20005, sent.Len())
	sent.Free()
	assert.EqualValues(t, 1, told.Load())

	small := codec.NewFrame([]byte("small"))
	small.OnFree(func() { told.Add(1) })
	assert.EqualValues(t, 2, told.Load(), "nobody counts who holds what is small")
}

func TestOnFreeTellsOfAFrameThatIsForgotten(t *testing.T) {
	told := make(chan struct{})
	func() {
		buf := make([]byte, 10000)
		codec.NewPooledFrame(&buf, mem.NopBufferPool{}).OnFree(func() { close(told) })
	}()
	for {
		runtime.GC()
		select {
		case <-told:
			return
		case <-time.After(10 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatal("it was forgotten")
		}
	}
}
