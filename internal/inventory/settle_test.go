package inventory

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/criproxy/criproxy/codec"
)

// shuffled is a list of n items of some 900 bytes, the labels of each in any order.
func shuffled(n int) *codec.Frame {
	text := func(b []byte, num protowire.Number, s string) []byte {
		return protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), s)
	}
	var all []byte
	for i := range n {
		item := text(nil, 1, fmt.Sprintf("%064d", i))
		for _, j := range rand.Perm(10) {
			entry := text(text(nil, 1, fmt.Sprintf("io.kubernetes.container.label%02d", j)), 2, fmt.Sprintf("%040d", j*i))
			item = text(item, 3, string(entry))
		}
		all = text(all, 1, string(item))
	}
	return codec.NewFrame(all)
}

func TestAListInWhichNothingHasChangedNeedsNoMemory(t *testing.T) {
	l := shopList(t)
	replies := []*codec.Frame{shuffled(50), shuffled(50)}
	i := 0
	assert.LessOrEqual(t, testing.AllocsPerRun(100, func() {
		l.Observe(l.inv.Begin(), time.Now(), replies[i%2])
		l.settle()
		i++
	}), 4.0, "a reference to the reply, however many items it has")
}

// A list of 400 items in which nothing has changed but the order of its maps: runtimes that are
// written in Go send them in another order each time.
func BenchmarkSettle(b *testing.B) {
	l := shopList(b)
	var replies []*codec.Frame
	for range 8 {
		replies = append(replies, shuffled(400))
	}
	b.SetBytes(int64(replies[0].Len()))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		l.inv.news = false
		l.Observe(l.inv.Begin(), time.Now(), replies[i%len(replies)])
		l.settle()
		if l.inv.news && i > 0 {
			b.Fatal("nothing has changed")
		}
	}
}

// A list is saved each second while it changes.
func TestSavingAListTakesNoMemoryForAllOfIt(t *testing.T) {
	l := shopList(t)
	l.Observe(l.inv.Begin(), time.Now(), shuffled(10_000))
	var before, after runtime.MemStats
	l.settle()
	runtime.ReadMemStats(&before)
	lists, _ := l.inv.Save()
	saved := lists[l.plan.key]
	size := 0
	for part := range saved.Parts(64 << 10) {
		size += len(part)
	}
	runtime.ReadMemStats(&after)
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20), "of %d", size)
	assert.Len(t, list(l), size)
}

func TestASavedListStaysAsItWas(t *testing.T) {
	l := shopList(t)
	l.Observe(l.inv.Begin(), time.Now(), codec.NewFrame([]byte("\x0a\x05\x0a\x01x\x10\x01")))
	lists, _ := l.inv.Save()
	saved := lists[l.plan.key]
	l.Merge(l.inv.Begin(), nil, []byte("\x0a\x05\x0a\x01x\x10\x02"))
	assert.Equal(t, "\x0a\x05\x0a\x01x\x10\x02", list(l))
	assert.Equal(t, "\x0a\x05\x0a\x01x\x10\x01", string(slices.Concat(slices.Collect(saved.Parts(64<<10))...)))
}
