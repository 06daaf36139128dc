package chaos

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// same fails unless the runtimes hold the same words as criproxy shows, in any order.
func same(held, shown []string) error {
	count := map[string]int{}
	for _, word := range held {
		count[word]++
	}
	for _, word := range shown {
		count[word]--
	}
	for word, n := range count {
		if n != 0 {
			return fmt.Errorf("%s: the runtimes have %d more of these than criproxy shows", word, n)
		}
	}
	return nil
}

// onceEach fails if a mutating call has reached the runtimes more than once. arrived counts calls by
// a name that the test has given to only one call.
func onceEach(arrived map[string]int) error {
	for call, times := range arrived {
		if times > 1 {
			return fmt.Errorf("the runtimes got this call %d times: %s", times, call)
		}
	}
	return nil
}

// inTime fails if a call ended more than 100 ms plus excuse after its deadline; excuse is how late
// timers were meanwhile. A busy machine makes it fail, so only runs that ask for it use it.
func inTime(overrun, excuse time.Duration) error {
	if overrun > 100*time.Millisecond+excuse {
		return fmt.Errorf("a call ended %s after its deadline; timers excuse %s of that", overrun, excuse)
	}
	return nil
}

// A level is the number of goroutines and open files of a process, and its memory in bytes: live is
// in use, resident is what the kernel has assigned. Zero may mean that a value was not measured.
type level struct {
	goroutines, files int
	live, resident    int64
}

// leaked fails if after exceeds l by more than more.
func (l level) leaked(after, more level) error {
	if after.goroutines > l.goroutines+more.goroutines || after.files > l.files+more.files ||
		after.live > l.live+more.live || after.resident > l.resident+more.resident {
		return fmt.Errorf("before %s, after %s", l, after)
	}
	return nil
}

// max returns the larger of each value.
func (l level) max(o level) level {
	return level{max(l.goroutines, o.goroutines), max(l.files, o.files), max(l.live, o.live), max(l.resident, o.resident)}
}

func (l level) String() string {
	const mib = 1 << 20
	text := fmt.Sprintf("%d goroutines, %d files, %.1f MiB in use", l.goroutines, l.files, float64(l.live)/mib)
	if l.resident > 0 {
		text += fmt.Sprintf(", %d MiB resident", l.resident/mib)
	}
	return text
}

func TestBrokenInvariantsAreErrors(t *testing.T) {
	assert.NoError(t, same([]string{"a", "b"}, []string{"b", "a"}))
	assert.Error(t, same([]string{"a", "b"}, []string{"a"}), "less is shown")
	assert.Error(t, same([]string{"a"}, []string{"a", "a"}), "an item is shown twice")
	assert.Error(t, same([]string{"container a RUNNING"}, []string{"container a EXITED"}), "another state is shown")
	assert.NoError(t, onceEach(map[string]int{"stop a": 1, "stop b": 1}))
	assert.Error(t, onceEach(map[string]int{"stop a": 2}))
	assert.NoError(t, inTime(90*time.Millisecond, 0))
	assert.Error(t, inTime(110*time.Millisecond, 0))
	assert.NoError(t, inTime(110*time.Millisecond, 20*time.Millisecond))
	before, more := level{100, 10, 1 << 20, 30 << 20}, level{15, 5, 8 << 20, 96 << 20}
	assert.NoError(t, before.leaked(level{105, 12, 2 << 20, 40 << 20}, more))
	for _, after := range []level{{200, 10, 1 << 20, 0}, {100, 20, 1 << 20, 0}, {100, 10, 10 << 20, 0}, {100, 10, 1 << 20, 130 << 20}} {
		assert.Error(t, before.leaked(after, more))
	}
}
