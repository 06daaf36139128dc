package model

import (
	"path"
	"regexp"
	"strconv"
)

var aboutCalls = regexp.MustCompile(`(?m)^criproxy_calls_(total|in_flight)\{(?:code="(\w+)",)?method="([^"]*)"\} (\d+)$`)

// judgeMetrics reports calls that the metrics of a process lack, and, because there are no clients any more, those that
// they say are under way. mu is held.
func (w *world) judgeMetrics(p *proxy) {
	counted := map[string]int{}
	for _, m := range aboutCalls.FindAllStringSubmatch(string(p.asks("/metrics")), -1) {
		n, err := strconv.Atoi(m[4])
		w.must(err)
		switch method := path.Base(m[3]); {
		case m[1] == "in_flight" && n != 0:
			w.violated("at rest, the metrics say that %d calls of %s are under way", n, method)
		case m[1] == "total" && m[2] == "OK":
			counted[method] += n
		}
	}
	for method, n := range p.ok {
		if counted[method] < n {
			w.violated("clients got OK from %d calls of %s of process %d, and the metrics say from %d", n, method, p.number, counted[method])
		}
	}
}
