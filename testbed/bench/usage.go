package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A usage is the CPU time that a process has used since its start.
type usage struct {
	cpu          time.Duration // exact
	user, system time.Duration // in ticks of 10 ms, proc(5)
}

func (u usage) minus(v usage) usage {
	return usage{u.cpu - v.cpu, u.user - v.user, u.system - v.system}
}

func (u usage) plus(v usage) usage {
	return usage{u.cpu + v.cpu, u.user + v.user, u.system + v.system}
}

// usageOf reads the usage of a process with all its threads.
func usageOf(pid int) (usage, error) {
	var t unix.Timespec
	// The id of another process's CPU-time clock, computed as in clock_getcpuclockid(3).
	if err := unix.ClockGettime(int32(^pid<<3|2), &t); err != nil {
		return usage{}, fmt.Errorf("reading the cpu clock of process %d: %w", pid, err)
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return usage{}, err
	}
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	if len(fields) < 13 {
		return usage{}, fmt.Errorf("/proc/%d/stat: cut short", pid)
	}
	ticks := func(i int) time.Duration {
		n, _ := strconv.Atoi(fields[i]) // proc(5) promises digits
		return time.Duration(n) * 10 * time.Millisecond
	}
	return usage{cpu: time.Duration(t.Nano()), user: ticks(11), system: ticks(12)}, nil
}

// A footprint is the resident memory of a process, in bytes.
type footprint struct {
	now  int64
	own  int64 // of now, without the pages of files, mostly those of the program, which the kernel can drop
	peak int64
}

func memoryOf(pid int) (m footprint, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return m, err
	}
	of := map[string]*int64{"VmRSS": &m.now, "RssAnon": &m.own, "VmHWM": &m.peak}
	for line := range strings.Lines(string(data)) {
		key, value, _ := strings.Cut(line, ":")
		if to := of[key]; to != nil {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			if err != nil {
				return m, err
			}
			*to = n << 10
		}
	}
	return m, nil
}
