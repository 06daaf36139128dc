// This file makes this process use few CPUs and wake up seldom.

package cli

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// UseFewCPUs makes the process use few CPUs, unless GOMAXPROCS sets their number. A call passes from
// goroutine to goroutine, and waking another CPU for each of them costs more than the work that the
// CPU then does.
func UseFewCPUs() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(min(max(runtime.GOMAXPROCS(0)/2, 1), maxCPUs))
	}
}

// maxCPUs is more CPUs than the calls of a kubelet can keep busy.
const maxCPUs = 4

// TimerSlack is how late, in nanoseconds, the kernel may wake a sleeping thread: prctl(2),
// PR_SET_TIMERSLACK. After each call Go's scheduler sleeps for 20 microseconds, several times, to
// see whether there is more work. With the kernel's default of 50 microseconds these sleeps caused
// half of all wake-ups, and a fifth of the CPU time of calls that are far apart. The price is that
// Go replaces a thread that is stuck in a system call that much later.
const TimerSlack = "2000000"

// LetTimersBeLate sets [TimerSlack] for all threads; new threads inherit it. To set it for another
// thread the process needs the capability SYS_NICE. The systemd unit does not grant it, and sets
// TimerSlackNSec instead.
func LetTimersBeLate() {
	for again, rounds := true, 0; again && rounds < 10; rounds++ { // threads may start others in the meantime
		again = false
		threads, _ := filepath.Glob("/proc/self/task/*") // the pattern is valid
		for _, t := range threads {
			file := "/proc/" + filepath.Base(t) + "/timerslack_ns"
			if is, err := os.ReadFile(file); err != nil || strings.TrimSpace(string(is)) == TimerSlack {
				continue // the thread has ended, or has it already
			}
			again = os.WriteFile(file, []byte(TimerSlack), 0) == nil || again
		}
	}
}
