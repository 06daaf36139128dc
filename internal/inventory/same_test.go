package inventory

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/criproxy/criproxy/codec"
)

func TestMessagesAreTheSameWhateverTheOrderOfTheirMaps(t *testing.T) {
	l := shopList(t)
	text := func(num protowire.Number, s string) string {
		return string(protowire.AppendString(protowire.AppendTag(nil, num, protowire.BytesType), s))
	}
	label := func(k, v string) string { return text(3, text(1, k)+text(2, v)) }
	id, colour, blue := text(1, "7"), "\x10\x01", "\x10\x02"
	a, b, c := label("a", "1"), label("b", "22"), label("c", "3")
	unknown := text(90, "u")
	var many, shuffled []string
	for i := range 40 {
		many = append(many, label(strings.Repeat("k", i), "v"))
	}
	shuffled = slices.Clone(many)
	slices.Reverse(shuffled)
	item := func(parts ...string) string { return strings.Join(parts, "") }
	for _, test := range []struct {
		name string
		a, b string
		same bool
	}{
		{"nothing", "", "", true},
		{"equal", item(id, a, b, colour), item(id, a, b, colour), true},
		{"another order", item(id, a, b, c, colour), item(id, c, a, b, colour), true},
		{"of many", item(append([]string{id}, many...)...), item(append([]string{id}, shuffled...)...), true},
		{"unknown fields too", item(id, a, b, unknown), item(id, b, a, unknown), true},
		{"another value", item(id, a, b), item(id, label("b", "11"), label("a", "2")), false},
		{"another key", item(id, a, c), item(id, c, label("d", "1")), false},
		{"one twice", item(id, a, a, c), item(id, a, c, c), false},
		{"another scalar", item(id, a, colour), item(id, a, blue), false},
		{"another unknown field", item(id, a, c, unknown), item(id, c, a, text(90, "v")), false},
		{"shorter", item(id, a, b), item(id, a), false},
		{"a map in two parts", item(a, id, c), item(c, id, a), false},
		{"malformed", item(id, a, c) + "\xff", item(id, c, a) + "\xff", false},
		{"malformed and equal", "\xff", "\xff", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			assert.Equal(t, test.same, same(l.plan.item, []byte(test.a), []byte(test.b)))
			assert.Equal(t, test.same, same(l.plan.item, []byte(test.b), []byte(test.a)))
			whole := l.plan.Unary.Output
			assert.Equal(t, test.same, same(whole, []byte(text(1, test.a)+text(1, "")), []byte(text(1, test.b)+text(1, ""))), "inside of another")
		})
	}
}

func TestAListInAnotherOrderIsNoNews(t *testing.T) {
	l := shopList(t)
	item := func(parts string) []byte {
		return protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), parts)
	}
	one, two, three := item("\x0a\x011"), item("\x0a\x012"), item("\x0a\x013")
	for _, step := range []struct {
		reply [][]byte
		news  bool
	}{
		{nil, false},
		{[][]byte{one, two}, true},
		{[][]byte{two, one}, false},
		{[][]byte{one}, true},
		{[][]byte{one, one}, false}, // the same
		{[][]byte{one, three}, true},
		{[][]byte{one, one}, true}, // three is gone
		{[][]byte{item("\x0a\x011\x10\x01")}, true},
	} {
		l.Observe(l.inv.Begin(), time.Now(), codec.NewFrame(slices.Concat(step.reply...)))
		l.inv.news = false
		l.settle()
		assert.Equal(t, step.news, l.inv.news, "%q", step.reply)
	}
}

func TestMessagesAreTheSameWhateverTheirStamps(t *testing.T) {
	l := shopList(t)
	l.plan.stamps = stamps{"*.colour"}
	whole := func(item string) string { return "\x0a" + string(rune(len(item))) + item }
	for _, test := range []struct {
		name string
		a, b string
		same bool
	}{
		{"another", "\x0a\x017\x10\x01", "\x0a\x017\x10\x02", true},
		{"a longer one", "\x0a\x017\x10\x01", "\x0a\x017\x10\x80\x01", true},
		{"none", "\x0a\x017\x10\x01", "\x0a\x017", true},
		{"none before another field", "\x10\x01\x0a\x017", "\x0a\x017", true},
		{"another field as well", "\x0a\x017\x10\x01", "\x0a\x018\x10\x02", false},
		{"one more field", "\x0a\x017\x10\x01", "\x0a\x017\x10\x02\x20\x01", false},
		{"malformed", "\x0a\x017\x10\x01", "\x0a\x017\x10", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, pair := range [][2]string{{test.a, test.b}, {test.b, test.a}} {
				assert.Equal(t, test.same, l.plan.stamps.same(l.plan.item, []byte(pair[0]), []byte(pair[1])))
				assert.Equal(t, test.same, l.plan.stamps.same(l.plan.Unary.Output, []byte(whole(pair[0])), []byte(whole(pair[1]))), "inside of another")
			}
		})
	}
}

// Memory has the latest stamps, and the file those of the latest change.
func TestAListWithOtherStampsIsNoNews(t *testing.T) {
	l := shopList(t)
	l.plan.stamps = stamps{"Item.colour"}
	reply := func(colour string) []byte { return []byte("\x0a\x05\x0a\x017\x10" + colour) }
	l.Observe(l.inv.Begin(), time.Now(), codec.NewFrame(reply("\x01")))
	l.settle()
	l.inv.news = false
	l.Observe(l.inv.Begin(), time.Now(), codec.NewFrame(reply("\x02")))
	l.settle()
	assert.False(t, l.inv.news)
	assert.Equal(t, reply("\x02"), []byte(list(l)))
	l.Merge(l.inv.Begin(), nil, reply("\x03"))
	assert.False(t, l.inv.news)
	assert.False(t, l.Stale())
	assert.Equal(t, reply("\x03"), []byte(list(l)))
}
