package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/criproxy/criproxy/internal/testing/markdown"
)

// write prints the report, and writes it into the requested files.
func (r *report) write(o options, out io.Writer) error {
	var text bytes.Buffer
	r.markdown(&text)
	if _, err := out.Write(text.Bytes()); err != nil {
		return err
	}
	if o.json != "" {
		data, err := json.MarshalIndent(r.program(), "", "\t")
		if err != nil {
			return err
		}
		if err := os.WriteFile(o.json, append(data, '\n'), 0o644); err != nil {
			return err
		}
	}
	if o.out == "" {
		return nil
	}
	if err := markdown.Between(o.out, beginMark, endMark, text.String()); err != nil {
		return err
	}
	return r.plot(strings.TrimSuffix(o.out, ".md") + ".svg")
}

const (
	beginMark = "<!-- measured: begin -->\n"
	endMark   = "<!-- measured: end -->\n"
)

func (r *report) markdown(w io.Writer) {
	fmt.Fprintf(w, "Measured on %s: %s, %d CPUs, %s%s.\n", time.Now().Format(time.DateOnly), processor(), runtime.NumCPU(), runtime.Version(), versions())
	fmt.Fprintf(w, "%d rounds; in each, every row has %v. Ratios are medians over the rounds.\n", r.rounds, r.time)
	if len(r.absent) > 0 {
		fmt.Fprintf(w, "\nLeft out:\n\n- %s\n", strings.Join(r.absent, "\n- "))
	}
	if targets := r.targets(); len(targets) > 0 {
		fmt.Fprintf(w, "\n| target | want | measured | | %s |\n| --- | --- | --- | --- | --- |\n", limit)
		for _, t := range targets {
			fmt.Fprintf(w, "| %s | %s | %s | %s | %s |\n", t.What, t.Want, t.Got, map[bool]string{true: "met", false: "**missed**"}[t.Met], t.Limit)
		}
	}
	if len(r.node) > 0 {
		fmt.Fprintf(w, "\n| between a real kubelet with %d pods and containerd, for %s each | part of a core | memory |\n| --- | --: | --: |\n", nodePods, nodeWatch)
		for _, l := range r.node {
			fmt.Fprintf(w, "| %s | %.2f%% | %.1f MiB |\n", l.contender, 100*l.part, float64(l.memory)/(1<<20))
		}
	}
	if len(r.mix) > 0 {
		fmt.Fprintf(w, "\n| what a kubelet with %d pods calls when nothing happens | a second |\n| --- | --: |\n", nodePods)
		for _, m := range r.mix {
			fmt.Fprintf(w, "| %s | %.2f |\n", m.method, m.rate)
		}
	}
	last := ""
	for _, f := range r.figures {
		if r.whole && called(f.contender).variant {
			continue
		}
		if f.work.name != last {
			last = f.work.name
			fmt.Fprintf(w, "\n| %s | p50 | p99 | a second | CPU a call | user | p50 / direct | CPU / grpc-proxy | peak memory |\n| --- | --: | --: | --: | --: | --: | --: | --: | --: |\n", f.work.name)
		}
		fmt.Fprintf(w, "| %s | %s | %s | %.0f |", f.contender, short(f.P50), short(f.P99), f.Rate)
		if f.contender == direct {
			fmt.Fprint(w, " | | | | |\n")
			continue
		}
		fmt.Fprintf(w, " %s | %.0f%% | %.2f | %.2f | %.1f MiB |\n", short(f.CPU), 100*f.User, f.P50OfDirect, f.CPUOfStock, float64(f.Peak)/(1<<20))
	}
}

// short formats a duration with three digits.
func short(d time.Duration) string {
	switch {
	case d >= 100*time.Millisecond:
		return fmt.Sprintf("%.0f ms", d.Seconds()*1e3)
	case d >= time.Millisecond:
		return fmt.Sprintf("%.2f ms", d.Seconds()*1e3)
	case d >= 100*time.Microsecond:
		return fmt.Sprintf("%.0f µs", d.Seconds()*1e6)
	}
	return fmt.Sprintf("%.2f µs", d.Seconds()*1e6)
}

// program returns the figures in a form for programs.
func (r *report) program() any {
	type row struct {
		Work, Contender             string
		P50, P99, CPU               float64 // seconds
		Rate, User                  float64
		Peak                        int64
		P50OfDirect, CPUOfGRPCProxy float64
	}
	var rows []row
	for _, f := range r.figures {
		rows = append(rows, row{f.work.name, f.contender, f.P50.Seconds(), f.P99.Seconds(), f.CPU.Seconds(), f.Rate, f.User, f.Peak, f.P50OfDirect, f.CPUOfStock})
	}
	return map[string]any{"rounds": r.rounds, "turn": r.time.Seconds(), "absent": r.absent, "targets": r.targets(), "figures": rows}
}

// processor returns the name of the processor.
func processor() string {
	data, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(data)) {
		if key, value, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// versions returns the versions of the compared proxies.
func versions() string {
	var all string
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == "google.golang.org/grpc" || m.Path == "github.com/mwitkow/grpc-proxy" {
				all += ", " + m.Path[strings.LastIndexByte(m.Path, '/')+1:] + " " + m.Version
			}
		}
	}
	for _, program := range []string{"nginx", "haproxy"} {
		out, err := exec.Command(program, "-v").CombinedOutput()
		if err == nil {
			line, _, _ := strings.Cut(string(out), "\n")
			line = strings.TrimPrefix(line, "nginx version: ")
			words := strings.Fields(line)
			all += ", " + strings.Join(words[:min(3, len(words))], " ")
		}
	}
	return all
}
