package memory

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/criproxy/criproxy/codec"
)

// A list with a filter comes often, and is long: it must not stay in memory for one item.
func TestMemoryKeepsOnlyNewItemsOfAFilteredList(t *testing.T) {
	l := shopList(t)
	remember(l)
	l.observe(l.begin(), time.Now(), shuffled(100))
	l.settle()
	l.news = false
	answer := bytes.Replace(shuffled(100).Bytes(), []byte("io.kubernetes.container.label03"), []byte("io.kubernetes.container.label33"), 1)
	assert.False(t, l.merge(l.begin(), nil, answer))
	shared, changed := 0, 0
	for _, body := range l.items.all() {
		if cap(body) < 2*len(body) { // it was copied, and is no part of a list
			changed++
		}
	}
	clear(answer)
	for id, body := range l.items.all() {
		if got, _, err := l.id.Lookup(body); err != nil || string(got) != id {
			shared++
		}
	}
	assert.Equal(t, 1, changed)
	assert.Zero(t, shared, "memory has copied the item")
}

func TestAnOlderListTakesNoItemAway(t *testing.T) {
	l := shopList(t)
	remember(l)
	older, filtered := l.begin(), l.begin()
	l.merge(filtered, nil, shuffled(1).Bytes())
	l.observe(older, time.Now(), &codec.Frame{})
	l.settle()
	assert.Len(t, l.items.ids, 1)
	l.observe(l.begin(), time.Now(), &codec.Frame{})
	l.settle()
	assert.Empty(t, l.items.ids, "a newer list does")
}

func TestABrokenListIsNotAnEmptyOne(t *testing.T) {
	l := shopList(t)
	remember(l)
	broken := func() {
		l.observe(l.begin(), time.Now(), codec.NewFrame([]byte("\x0a\x7f")))
		l.settle()
	}
	broken()
	assert.False(t, l.complete)
	l.observe(l.begin(), time.Now(), shuffled(1))
	l.settle()
	broken()
	assert.True(t, l.complete, "the items from before stay")
	assert.Len(t, l.items.ids, 1)
}

func TestATimeInTheFutureCountsAsLongAgo(t *testing.T) {
	assert.True(t, older(time.Now().Add(time.Hour), time.Minute), "the clock was set back")
	assert.True(t, older(time.Now().Add(-time.Hour), time.Minute))
	assert.False(t, older(time.Now(), time.Minute))
}

func TestAStatusOfWhatIsNotListedIsNotKept(t *testing.T) {
	l := shopList(t)
	remember(l)
	mem := NewMemory("shop")
	c := &Conn{cfg: Config{MaxBytes: 1 << 20}, lists: []*list{l}, mem: mem, mu: &mem.mu}
	l.observe(l.begin(), time.Now(), shuffled(1))
	c.keep(l, "another", l.begin(), []byte("\x0a\x00"))
	assert.Empty(t, l.statuses)
}

func TestABeginningOfTwoIdsHasNoStatus(t *testing.T) {
	l := shopList(t)
	remember(l)
	l.status = &statusCall{}
	c := &Conn{lists: []*list{l}}
	l.observe(l.begin(), time.Now(), codec.NewFrame([]byte("\x0a\x04\x0a\x02a1\x0a\x04\x0a\x02a2")))
	l.settle()
	l.statuses["a1"], l.statuses["a2"] = known{reply: []byte("1"), asked: l.begin()}, known{reply: []byte("2"), asked: l.begin()}
	for name, want := range map[string]string{"a1": "1", "a2": "2", "a": "", "b": ""} {
		got, ok := c.statusFromMemory(l, name)
		assert.Equal(t, want != "", ok, name)
		if ok {
			assert.Equal(t, want, string(got))
		}
	}
}
