package main

import (
	"fmt"
	"image/color"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

var colors = []color.Color{color.RGBA{0x88, 0x88, 0x88, 0xff}, color.RGBA{0x55, 0xa8, 0x68, 0xff}, color.RGBA{0x4c, 0x72, 0xb0, 0xff},
	color.RGBA{0xc4, 0x4e, 0x52, 0xff}, color.RGBA{0xdd, 0x84, 0x52, 0xff}, color.RGBA{0x81, 0x72, 0xb3, 0xff}}

// plot draws the CPU time of each contender for a call, relative to grpc-proxy's, for some works.
func (r *report) plot(path string) error {
	p := plot.New()
	p.Title.Text = "CPU time of the proxy a call, grpc-proxy = 1"
	p.Y.Min = 0
	p.Legend.Top = true
	names := []string{stock, mover, limit, ours, two, native}
	works := []string{"status, 1 at once", "status, 16 at once", "list of 100", "list of 800", "list of 10000", "exec with 15 MiB of output"}
	width := vg.Points(11)
	for i, name := range names {
		values := make(plotter.Values, len(works))
		for j, w := range works {
			if f := r.find(w, name); f != nil {
				values[j] = f.CPUOfStock
			}
		}
		bars, err := plotter.NewBarChart(values, width)
		if err != nil {
			return fmt.Errorf("drawing %s: %w", path, err)
		}
		bars.Color = colors[i]
		bars.LineStyle.Width = 0
		bars.Offset = width * vg.Length(float64(i)-float64(len(names)-1)/2)
		p.Add(bars)
		p.Legend.Add(name, bars)
	}
	p.NominalX(works...)
	return p.Save(vg.Points(780), vg.Points(340), path)
}
