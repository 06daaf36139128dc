package main

import (
	"bytes"
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/criproxy/criproxy/internal/testing/markdown"
)

// write prints the measurements, and writes them into the requested file.
func (s *soak) write(out io.Writer) error {
	var text bytes.Buffer
	s.markdown(&text)
	if _, err := out.Write(text.Bytes()); err != nil || s.out == "" {
		return err
	}
	if err := markdown.Between(s.out, beginMark, endMark, text.String()); err != nil {
		return err
	}
	return s.plot(strings.TrimSuffix(s.out, ".md") + ".svg")
}

func (s *soak) markdown(w io.Writer) {
	calls := 0
	for _, r := range s.rows {
		calls += r.calls
	}
	fmt.Fprintf(w, "`make soak SOAK=%s SPEED=%g` on %s, %s, %d CPUs, %s: %d calls, %d errors.\n\n", s.long, s.speed, time.Now().Format(time.DateOnly), processor(), runtime.NumCPU(), runtime.Version(), calls, s.failed())
	fmt.Fprint(w, "| after | calls | errors | p50 | p99 | CPU | memory | goroutines | files |\n| --: | --: | --: | --: | --: | --: | --: | --: | --: |\n")
	for i, r := range s.rows {
		if i%5 != 4 {
			continue // the plot has it
		}
		fmt.Fprintf(w, "| %s | %d | %d | %s | %s | %.1f s | %.1f MiB | %d | %d |\n",
			r.at.Round(time.Second), r.calls, r.errors, short(r.p50), short(r.p99), r.cpu.Seconds(), float64(r.rss)/(1<<20), r.goroutines, r.files)
	}
}

// plot draws memory and the durations of the slowest calls over time.
func (s *soak) plot(path string) error {
	p := plot.New()
	p.Title.Text = fmt.Sprintf("criproxy under the calls of a kubelet, %g times as often", s.speed)
	p.X.Label.Text = "minutes"
	p.Y.Min = 0
	p.Legend.Top = true
	for i, line := range []struct {
		name string
		of   func(soakRow) float64
	}{
		{"memory, MiB", func(r soakRow) float64 { return float64(r.rss) / (1 << 20) }},
		{"goroutines", func(r soakRow) float64 { return float64(r.goroutines) }},
		{"open files", func(r soakRow) float64 { return float64(r.files) }},
		{"p99, ms", func(r soakRow) float64 { return r.p99.Seconds() * 1e3 }},
	} {
		points := make(plotter.XYs, len(s.rows))
		for j, r := range s.rows {
			points[j] = plotter.XY{X: r.at.Minutes(), Y: line.of(r)}
		}
		l, err := plotter.NewLine(points)
		if err != nil {
			return fmt.Errorf("drawing %s: %w", path, err)
		}
		l.Color = colors[i+1]
		l.Width = vg.Points(1.5)
		p.Add(l)
		p.Legend.Add(line.name, l)
	}
	return p.Save(vg.Points(780), vg.Points(340), path)
}
