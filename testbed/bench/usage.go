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

// memoryOf returns the current and the peak memory of a process, in bytes.
func memoryOf(pid int) (now, peak int64, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(data)) {
		key, value, _ := strings.Cut(line, ":")
		n, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64) // fails on other lines, whose values are not used
		switch key {
		case "VmRSS":
			now = n << 10
		case "VmHWM":
			peak = n << 10
		}
	}
	return now, peak, nil
}
