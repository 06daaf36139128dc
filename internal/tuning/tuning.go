// Package tuning makes this process use few CPUs and wake up seldom.
package tuning

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// UseFewCPUs leaves most of the machine to others, unless GOMAXPROCS sets the number of CPUs. A
// call passes from goroutine to goroutine, and waking another CPU for each of them costs more
// than the work that it is woken for.
func UseFewCPUs() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(min(max(runtime.GOMAXPROCS(0)/2, 1), maxCPUs))
	}
}

// maxCPUs is more than a kubelet can keep busy.
const maxCPUs = 4

// TimerSlack is how late, in nanoseconds, the kernel may wake a thread that sleeps for some
// time, prctl(2), PR_SET_TIMERSLACK. After each call Go's scheduler naps for 20 microseconds,
// again and again, to see whether there is more to do: with the kernel's 50 microseconds that
// was half of all wake-ups, and a fifth of the CPU time of calls that are far apart. The
// price is that a thread that is stuck in a system call is relieved that much later.
const TimerSlack = "2000000"

// LetTimersBeLate gives timerSlack to all threads; new ones inherit it. For threads other than
// its own that needs the capability SYS_NICE. The unit of systemd lacks it, and sets
// TimerSlackNSec instead.
func LetTimersBeLate() {
	for again, rounds := true, 0; again && rounds < 10; rounds++ { // threads start threads meanwhile
		again = false
		threads, _ := filepath.Glob("/proc/self/task/*") // the pattern is one
		for _, t := range threads {
			file := "/proc/" + filepath.Base(t) + "/timerslack_ns"
			if is, err := os.ReadFile(file); err != nil || strings.TrimSpace(string(is)) == TimerSlack {
				continue // or the thread has ended
			}
			again = os.WriteFile(file, []byte(TimerSlack), 0) == nil || again
		}
	}
}
