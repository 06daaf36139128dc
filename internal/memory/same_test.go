package memory

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
			assert.Equal(t, test.same, same(l.item, []byte(test.a), []byte(test.b)))
			assert.Equal(t, test.same, same(l.item, []byte(test.b), []byte(test.a)))
			whole := l.unary.Output
			assert.Equal(t, test.same, same(whole, []byte(text(1, test.a)+text(1, "")), []byte(text(1, test.b)+text(1, ""))), "inside of another")
		})
	}
}

func TestAListInAnotherOrderIsNoNews(t *testing.T) {
	l := shopList(t)
	remember(l)
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
		l.observe(l.begin(), time.Now(), codec.NewFrame(slices.Concat(step.reply...)))
		l.news = false
		l.settle()
		assert.Equal(t, step.news, l.news, "%q", step.reply)
	}
}
