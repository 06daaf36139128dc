// Package invariant checks what must hold after each injected fault, in memory (internal/server) and
// with real runtimes (testbed/chaos). Each function returns an error that says what does not hold.
// The package is for tests only.
package invariant

import (
	"fmt"
	"time"
)

// Same fails unless the runtimes hold the same words as criproxy shows, in any order.
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
			return fmt.Errorf("%s: the runtimes have %d more of these than criproxy shows", word, n)
		}
	}
	return nil
}

// OnceEach fails if a mutating call has reached the runtimes more than once. arrived counts calls by
// a name that the test has given to only one call.
func OnceEach(arrived map[string]int) error {
	for call, times := range arrived {
		if times > 1 {
			return fmt.Errorf("the runtimes got this call %d times: %s", times, call)
		}
	}
	return nil
}

// InTime fails if a call ended more than 100 ms plus excuse after its deadline; excuse is how late
// timers were meanwhile. A busy machine makes it fail, so only runs that ask for it use it.
func InTime(overrun, excuse time.Duration) error {
	if overrun > 100*time.Millisecond+excuse {
		return fmt.Errorf("a call ended %s after its deadline; timers excuse %s of that", overrun, excuse)
	}
	return nil
}

// A Level is the number of goroutines and open files of a process, and its memory in bytes: Live is
// in use, Resident is what the kernel has assigned. Zero may mean that a value was not measured.
type Level struct {
	Goroutines, Files int
	Live, Resident    int64
}

// Leaked fails if after exceeds l by more than more.
func (l Level) Leaked(after, more Level) error {
	if after.Goroutines > l.Goroutines+more.Goroutines || after.Files > l.Files+more.Files ||
		after.Live > l.Live+more.Live || after.Resident > l.Resident+more.Resident {
		return fmt.Errorf("before %s, after %s", l, after)
	}
	return nil
}

// Max returns the larger of each value.
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
