package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// A report holds all measurements.
type report struct {
	rounds  int
	time    time.Duration
	whole   bool     // of all contenders
	absent  []string // what was left out, and why
	figures []figure
	alone   []target
	mix     []mixed
	node    []load
}

// load is what a proxy has used between a real kubelet and its runtime.
type load struct {
	contender string
	part      float64 // CPU time, as a part of one core
	memory    int64
}

// mixed is a method that a real kubelet called, and its calls per second.
type mixed struct {
	method string
	rate   float64
}

// A figure holds the measurements of a contender in a work.
type figure struct {
	work      work
	contender string
	turns     []turn

	P50, P99    time.Duration
	Rate        float64       // calls per second
	CPU         time.Duration // of the proxy, per call
	User        float64       // part of the CPU time that was spent in user mode
	Peak        int64         // peak memory until then, in bytes
	P50OfDirect float64       // medians of the rounds
	CPUOfStock  float64
}

// leaveOut notes that something is not measured, and why.
func (r *report) leaveOut(progress io.Writer, what, why string) {
	fmt.Fprintf(progress, "left out: %s: %s\n", what, why)
	r.absent = append(r.absent, what+": "+strings.ReplaceAll(why, "\n", "; "))
}

// add adds the turns of a contender.
func (r *report) add(w work, p *running, turns []turn) {
	f := figure{work: w, contender: p.name, turns: turns}
	var all turn
	for _, t := range turns {
		all.took = append(all.took, t.took...)
		all.wall += t.wall
		all.usage = all.usage.plus(t.usage)
	}
	slices.Sort(all.took)
	f.P50, f.P99 = all.quantile(0.5), all.quantile(0.99)
	f.Rate = float64(len(all.took)) / all.wall.Seconds()
	f.CPU = all.usage.cpu / time.Duration(max(1, len(all.took)))
	if sum := all.usage.user + all.usage.system; sum > 0 {
		f.User = all.usage.user.Seconds() / sum.Seconds()
	}
	if p.cmd != nil {
		m, _ := memoryOf(p.cmd.Process.Pid)
		f.Peak = m.peak // zero is shown as unknown
	}
	f.P50OfDirect = r.ratio(f, direct, p50)
	f.CPUOfStock = r.ratio(f, stock, cpuPerCall)
	r.figures = append(r.figures, f)
}

func p50(t turn) float64        { return t.quantile(0.5).Seconds() }
func p99(t turn) float64        { return t.quantile(0.99).Seconds() }
func rate(t turn) float64       { return float64(len(t.took)) / t.wall.Seconds() }
func cpuPerCall(t turn) float64 { return t.usage.cpu.Seconds() / float64(max(1, len(t.took))) }

// find returns the figure of a contender in a work, or nil if there is none.
func (r *report) find(work, contender string) *figure {
	for i := range r.figures {
		if r.figures[i].work.name == work && r.figures[i].contender == contender {
			return &r.figures[i]
		}
	}
	return nil
}

// ratio returns the median over all rounds of f's value divided by another contender's in the same round, or zero if
// there is no such contender.
func (r *report) ratio(f figure, of string, what func(turn) float64) float64 {
	other := r.find(f.work.name, of)
	if of == f.contender {
		other = &f
	}
	if other == nil {
		return 0
	}
	var all []float64
	for i, t := range f.turns {
		all = append(all, what(t)/what(other.turns[i]))
	}
	return median(all)
}

// added returns the median over all rounds of the latency that f's contender adds to a direct call, divided by the
// latency that another contender adds.
func (r *report) added(f, other *figure) float64 {
	base := r.find(f.work.name, direct)
	var all []float64
	for i := range f.turns {
		all = append(all, (p50(f.turns[i])-p50(base.turns[i]))/(p50(other.turns[i])-p50(base.turns[i])))
	}
	return median(all)
}

func median(all []float64) float64 {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
}

// A target is a goal for a figure.
type target struct {
	What  string
	Want  string
	Got   string
	Limit string // the value of the contender that only moves bytes; for lists, with a list of one runtime of the same length
	Met   bool
}

func atMost(what string, limit, got float64) target {
	return target{What: what, Want: fmt.Sprintf("≤ %g", limit), Got: fmt.Sprintf("%.2f", got), Met: got > 0 && got <= limit}
}

func atLeast(what string, limit, got float64) target {
	return target{What: what, Want: fmt.Sprintf("≥ %g", limit), Got: fmt.Sprintf("%.2f", got), Met: got >= limit}
}

// targets compares the figures with our goals.
func (r *report) targets() []target {
	addedBy := func(of string) func(*figure) float64 {
		return func(f *figure) float64 {
			if other := r.find(f.work.name, of); other != nil {
				return r.added(f, other)
			}
			return 0
		}
	}
	by := func(of string, what func(turn) float64) func(*figure) float64 {
		return func(f *figure) float64 { return r.ratio(*f, of, what) }
	}
	peak := func(f *figure) float64 { return float64(f.Peak) / (1 << 20) }
	var all []target
	for _, t := range []struct {
		what, work, who, than string
		want                  func(string, float64, float64) target
		limit                 float64
		got                   func(*figure) float64
	}{
		{"status, 1 at once: p50 added, by what HAProxy adds", "status, 1 at once", ours, limit, atMost, 1.1, addedBy(limit)},
		{"status, 1 at once, 2 runtimes: p50 added, by what HAProxy adds", "status, 1 at once", two, limit, atMost, 1.3, addedBy(limit)},
		{"status, 1 at once, 2 runtimes: CPU a call, by grpc-proxy's", "status, 1 at once", two, stock, atMost, 0.5, by(stock, cpuPerCall)},
		{"status, 16 at once, 2 runtimes: CPU a call, by grpc-proxy's", "status, 16 at once", two, stock, atMost, 0.45, by(stock, cpuPerCall)},
		{"status, 20 a second, 2 runtimes: CPU a call, by grpc-proxy's", "status, 20 a second", two, stock, atMost, 0.55, by(stock, cpuPerCall)},
		{"status, 16 at once, 2 runtimes: calls a second, by grpc-proxy's", "status, 16 at once", two, stock, atLeast, 1.4, by(stock, rate)},
		{"status, 16 at once, 2 runtimes: calls a second, by nginx's", "status, 16 at once", two, mover, atLeast, 1, by(mover, rate)},
		{"events: a second, by nginx's", "events", ours, mover, atLeast, 0.8, by(mover, rate)},
		{"list of 2 × 400, merged and rewritten: CPU a call, by grpc-proxy's for a list of 800 unread", "list of 800", two, stock, atMost, 0.25, by(stock, cpuPerCall)},
		{"the same, if runtimes encode it and the client decodes it, as real ones do: p50, by a direct one's", "list of 800, encoded and decoded", two, direct, atMost, 1.15, by(direct, p50)},
		{"status, 1 at once: CPU a call, by criproxy's without its recorder", "status, 1 at once", ours, bare, atMost, 1.05, by(bare, cpuPerCall)},
		{"status, 16 at once: CPU a call, by criproxy's without its recorder", "status, 16 at once", ours, bare, atMost, 1.05, by(bare, cpuPerCall)},
		{"list of 400: CPU a call, by criproxy's without its recorder", "list of 400", ours, bare, atMost, 1.05, by(bare, cpuPerCall)},
		{"status, 16 at once, written to a file: CPU a call, by criproxy's", "status, 16 at once", capturing, ours, atMost, 1.25, by(ours, cpuPerCall)},
		{"the same: p99, by criproxy's", "status, 16 at once", capturing, ours, atMost, 1, by(ours, p99)},
		{"list of 10000 of 2 runtimes: peak memory, MiB", "list of 10000", two, "", atMost, 100, peak},
	} {
		f := r.find(t.work, t.who)
		if f == nil || t.than != "" && (r.find(t.work, t.than) == nil || r.find(t.work, direct) == nil) {
			continue
		}
		one := t.want(t.what, t.limit, t.got(f))
		if l := r.find(t.work, limit); l != nil && !slices.Contains([]string{limit, ours, bare}, t.than) {
			one.Limit = fmt.Sprintf("%.2f", t.got(l))
		}
		all = append(all, one)
	}
	if lo, hi := r.costs(two); hi > 0 {
		t := atMost("cost of a container in a merged list of 100 to 10000, call and all: most by least", 1.2, hi/lo)
		if lo, hi := r.costs(limit); hi > 0 {
			t.Limit = fmt.Sprintf("%.2f", hi/lo)
		}
		all = append(all, t)
	}
	return append(all, r.alone...)
}

// costs returns the lowest and the highest CPU time of a proxy for each container of a list, in seconds.
func (r *report) costs(who string) (lo, hi float64) {
	for _, n := range []int{100, 1000, 10000} {
		if f := r.find(fmt.Sprintf("list of %d", n), who); f != nil {
			cost := f.CPU.Seconds() / float64(n)
			if lo == 0 || cost < lo {
				lo = cost
			}
			hi = max(hi, cost)
		}
	}
	return lo, hi
}
