package memory

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/rewrite"
)

// The backend answers a request from before a change after it, and shows the item as it was, as it
// became, or as it is by now.
func TestAnEarlierAnswerShowsOnlyWhatIsNewer(t *testing.T) {
	const made, runs, ended = "\x0a\x05\x0a\x017\x10\x01", "\x0a\x05\x0a\x017\x10\x02", "\x0a\x05\x0a\x017\x10\x03"
	state, err := rewrite.ParsePath(shopList(t).item, "colour")
	require.NoError(t, err)
	create := func(l *list) { l.create("7", []byte(made[2:])) }
	start := func(l *list) {
		l.settle()
		l.become("7", &becomes{state, map[uint64]uint64{1: 2, 2: 2}})
	}
	remove := func(l *list) { l.remove("7") }
	for name, c := range map[string]struct {
		first        string // what the backend has listed before
		change       func(l *list)
		answer, want string
	}{
		"created, not listed yet":      {"", create, "", made},
		"created, and started since":   {"", create, runs, runs},
		"removed, still listed":        {made, remove, made, ""},
		"started, listed as before":    {made, start, made, runs},
		"started, listed so already":   {runs, start, made, runs},
		"started, has ended since":     {made, start, ended, ended},
		"started, is gone since":       {made, start, "", ""},
		"created and started, neither": {"", func(l *list) { create(l); start(l) }, "", runs},
		"created and started, one":     {"", func(l *list) { create(l); start(l) }, made, runs},
		"started and removed":          {made, func(l *list) { start(l); remove(l) }, runs, ""},
	} {
		for _, filtered := range []bool{false, true} {
			l := shopList(t)
			remember(l)
			l.observe(l.begin(), time.Now(), codec.NewFrame([]byte(c.first)))
			seq := l.begin()
			c.change(l)
			l.noteChange()
			if filtered && c.answer != "" {
				l.merge(seq, nil, []byte(c.answer))
			} else {
				l.observe(seq, time.Now(), codec.NewFrame([]byte(c.answer)))
			}
			l.settle()
			assert.Equal(t, c.want, string(l.reply(everything)), "%s, filtered: %t", name, filtered)
			l.observe(l.begin(), time.Now(), codec.NewFrame([]byte(made)))
			l.settle()
			assert.Equal(t, made, string(l.reply(everything)), "%s: a later answer counts", name)
		}
	}
}
