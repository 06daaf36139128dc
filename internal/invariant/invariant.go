// Package invariant has what must hold after each fault that is injected, in memory (internal/daemon) and on real
// parts (testbed/chaos). Each function returns an error that says what does not hold. It is for tests only.
package invariant

import (
	"fmt"
	"time"
)

// Same compares what the runtimes hold with what criproxy shows, as words in any order.
func Same(held, shown []string) error {
	count := map[string]int{}
	for _, word := range held {
		count[word]++
	}
	for _, word := range shown {
		count[word]--
	}
	for word, n := range count {
		if n != 0 {
			return fmt.Errorf("%s: the runtimes have %d more of it than criproxy shows", word, n)
		}
	}
	return nil
}

// OnceEach fails if a call that changes something has reached the runtimes more than once.
// arrived counts the calls by a name that the test gave to one call alone.
func OnceEach(arrived map[string]int) error {
	for call, times := range arrived {
		if times > 1 {
			return fmt.Errorf("the runtimes got this call %d times: %s", times, call)
		}
	}
	return nil
}

// InTime fails if a call ended more than 100 ms after its deadline, and excuse later still: how late timers were
// meanwhile. It is a stopwatch, which a busy machine stops late: it is only for runs that ask for it.
func InTime(overrun, excuse time.Duration) error {
	if overrun > 100*time.Millisecond+excuse {
		return fmt.Errorf("a call ended %s after its deadline; timers excuse %s of that", overrun, excuse)
	}
	return nil
}

// A Level is what a process has open, and the memory that it takes, in bytes: what is in use, and what the kernel has
// given. Zero is also what was not measured.
type Level struct {
	Goroutines, Files int
	Live, Resident    int64
}

// Leaked fails if there is more at after than more allows.
func (l Level) Leaked(after, more Level) error {
	if after.Goroutines > l.Goroutines+more.Goroutines || after.Files > l.Files+more.Files ||
		after.Live > l.Live+more.Live || after.Resident > l.Resident+more.Resident {
		return fmt.Errorf("before %s, after %s", l, after)
	}
	return nil
}

// Max returns the larger of each.
func (l Level) Max(o Level) Level {
	return Level{max(l.Goroutines, o.Goroutines), max(l.Files, o.Files), max(l.Live, o.Live), max(l.Resident, o.Resident)}
}

func (l Level) String() string {
	const mib = 1 << 20
	text := fmt.Sprintf("%d goroutines, %d files, %.1f MiB in use", l.Goroutines, l.Files, float64(l.Live)/mib)
	if l.Resident > 0 {
		text += fmt.Sprintf(", %d MiB resident", l.Resident/mib)
	}
	return text
}
