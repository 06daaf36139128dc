package model

import (
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
)

// A class is a class of calls, which has its own latency.
type class int

const (
	lists class = iota
	statuses
	alive
	rest
	classes
)

func (c class) String() string { return [...]string{"lists", "statuses", "alive", "rest"}[c] }

// latency is the range of durations of calls.
type latency struct{ least, most time.Duration }

func (l latency) draw(rnd *rand.Rand) time.Duration {
	if l.most <= l.least {
		return l.least
	}
	return l.least + time.Duration(rnd.Int64N(int64(l.most-l.least)))
}

// weather is the condition of a runtime for a while.
type weather struct {
	name    string
	latency [classes]latency

	down   bool          // no process listens at its socket
	barred bool          // it cannot be reached, although a process may listen
	frozen bool          // it accepts connections and answers nothing
	hangs  [classes]bool // it does not answer these
	code   codes.Code    // of every call
	list   codes.Code    // of lists
	status codes.Code    // of status calls
	broken bool          // its lists are cut off or malformed
	latin  bool          // its lists have text that is not UTF-8
	cut    int           // connections are cut after so many more bytes; negative: not
	stall  int           // a frozen runtime stops after so many more bytes
	only   map[kind]bool // :: kind of list that is affected; nil: both are
}

// steady reports whether the runtime answers everything, however slowly.
func (w *weather) steady() bool {
	return !w.down && !w.barred && !w.frozen && w.hangs == [classes]bool{} && w.code == 0 && w.list == 0 && w.status == 0 && !w.broken
}

// reachable reports whether the runtime answers any call at all.
func (w *weather) reachable() bool { return !w.down && !w.barred && !w.frozen }

func (w *weather) concerns(k kind) bool { return w.only == nil || w.only[k] }

const fast = 40 * time.Millisecond

// clear is the weather in which a runtime answers everything at once.
func clear() weather {
	w := weather{name: "clear", cut: -1}
	for c := range w.latency {
		w.latency[c] = latency{time.Millisecond, fast}
	}
	return w
}

// forecast draws the next weather at random.
func forecast(rnd *rand.Rand) weather {
	w := clear()
	if rnd.IntN(3) == 0 {
		w.only = map[kind]bool{kind(rnd.IntN(2)): true}
	}
	some := func(most time.Duration) latency {
		top := time.Duration(rnd.Int64N(int64(most))) + time.Millisecond
		return latency{time.Duration(rnd.Int64N(int64(top))), top}
	}
	switch n := rnd.IntN(24); n {
	case 0, 1, 2, 3: // clear
		w.only = nil
	case 4:
		w.name, w.latency[lists] = "lists take 2.5 s", latency{2500 * time.Millisecond, 2501 * time.Millisecond}
	case 5:
		w.name, w.latency[lists] = "slow lists", some(30*time.Second)
	case 6:
		w.name, w.latency[statuses] = "slow statuses", some(30*time.Second)
	case 7:
		w.name, w.latency[rest] = "slow writes", some(30*time.Second)
	case 8:
		top := some(9 * time.Second)
		w.name = "all is slow"
		w.only = nil
		for c := range w.latency {
			w.latency[c] = top
		}
	case 9:
		top := some(30 * time.Second)
		w.name = "all is slow but alive"
		w.only = nil
		for c := range w.latency {
			if class(c) != alive {
				w.latency[c] = top
			}
		}
	case 10:
		w.name, w.frozen = "frozen", true
	case 11:
		c := []class{lists, statuses, rest}[rnd.IntN(3)]
		w.name, w.hangs[c] = c.String()+" hang", true
	case 12, 13:
		w.name, w.down = "down", true
	case 14:
		w.name, w.barred = "barred", true
	case 15:
		w.name, w.list = "lists fail", codes.Code(1+rnd.IntN(16))
	case 16:
		w.name, w.code = "all fails", codes.Code(1+rnd.IntN(16))
	case 17:
		w.name, w.broken = "lists are broken", true
	case 18:
		w.name, w.latency[lists] = "around the budget", latency{1500 * time.Millisecond, 2800 * time.Millisecond}
	case 19:
		w.name, w.status = "statuses fail", codes.Code(1+rnd.IntN(16))
	case 20:
		w.name, w.latin = "lists have text that is not UTF-8", true
	case 21, 22:
		w.name, w.cut, w.only = "connections are cut", rnd.IntN(10_000), nil
	case 23:
		w.name, w.frozen, w.stall, w.only = "stalls within a message", true, rnd.IntN(10_000), nil
	}
	return w
}

func (w weather) String() string {
	s := w.name
	for c, l := range w.latency {
		if l.most > fast {
			s += fmt.Sprintf(", %s %s to %s", class(c), l.least.Round(time.Millisecond), l.most.Round(time.Millisecond))
		}
	}
	for _, c := range []codes.Code{w.code, w.list, w.status} {
		if c != 0 {
			s += ", " + c.String()
		}
	}
	for k := range w.only {
		s += ", only " + k.String()
	}
	return s
}
