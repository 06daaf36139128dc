// Package metrics reads metrics in the text format of Prometheus.
package metrics

import (
	"strconv"
	"strings"
)

// Metrics are samples by name and labels, as in the text format:
//
//	kubelet_runtime_operations_total{operation_type="stop_container"}
type Metrics map[string]float64

// Parse reads the text format. It skips lines that are not samples.
func Parse(text string) Metrics {
	all := Metrics{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		i := strings.LastIndexByte(line, ' ')
		if i < 0 || line[0] == '#' {
			continue
		}
		if value, err := strconv.ParseFloat(line[i+1:], 64); err == nil {
			all[line[:i]] = value
		}
	}
	return all
}
