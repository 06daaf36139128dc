package server

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/drift"
	"github.com/criproxy/criproxy/internal/testing/invariant"
	"github.com/criproxy/criproxy/internal/testing/markdown"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

var chaosClock = flag.Bool("chaos.clock", false, "set the MACHINE'S clock hours ahead and back, for seconds at a time")

// TestNothingDependsOnTheClockOfTheWall sets the machine's clock by hours, in both directions,
// and checks everything that depends on time: deadlines, the lists of a dead runtime, how
// soon it is found again, the capture's files, and the invariants of chaos.
func TestNothingDependsOnTheClockOfTheWall(t *testing.T) {
	if !*chaosClock {
		t.Skip("NOT TESTED: jumps of the clock; all programs of this machine see them (make chaos CHAOS_CLOCK=1)")
	}
	var report strings.Builder
	fmt.Fprintf(&report, "| the clock is set by | longest overrun of a deadline | a dead runtime is noticed, by its budget of 2s, after | found again after at most | p99 of calls meanwhile | and else |\n|---|---|---|---|---|---|\n")
	for _, by := range []time.Duration{5 * time.Hour, -5 * time.Hour} {
		t.Run(fmt.Sprint(by), func(t *testing.T) {
			c := newChaos(t, func(*config.Config) {})
			c.run(1, "p1", 1)
			c.look()
			c.gone[2] = c.holds(2)
			c.runtimes[2].Kill()
			c.isDown(2)
			captured := func() os.FileInfo {
				info, err := os.Stat(c.cfg.Capture.Path)
				require.NoError(t, err)
				return info
			}
			before := captured()
			var noticed, found time.Duration
			c.inject(-1, fault{name: "the clock jumps", do: func(int) {
				jumped(t, by, func() {
					c.look()
					for i := range 2 {
						c.deadline(i)
					}
					c.run(0, "p2", 1)
					c.gone[1] = c.holds(1)
					c.runtimes[1].Freeze()
					began := time.Now()
					c.isDown(1) // by its budget of 2s
					noticed = time.Since(began)
					assert.Less(t, noticed, 10*time.Second)
					c.look()
				})
			}})
			require.NoError(t, invariant.InTime(c.overrun, c.excuse))
			strange := &runtimeapi.ContainerStatusRequest{ContainerId: c.probe.containers[0]}
			strange.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 9999, protowire.VarintType), 1))
			testkit.Eventually(t, "drift is looked for as ever", func() bool {
				_, err := c.ContainerStatus(c.ctx(), strange)
				require.NoError(t, err)
				return slices.ContainsFunc(c.proxy.drift.Findings(), func(f drift.Finding) bool { return strings.Contains(f.Where, "9999") })
			})
			for i := 1; i <= 2; i++ {
				began := time.Now()
				c.comeBack(i)
				found = max(found, time.Since(began))
				assert.Less(t, found, 10*time.Second, "runtime %d is found again as soon as ever", i)
			}
			for range 200 {
				_, err := c.ListContainers(c.ctx(), &runtimeapi.ListContainersRequest{})
				require.NoError(t, err)
			}
			testkit.Eventually(t, "the capture goes on in other files", func() bool { return !os.SameFile(before, captured()) })
			c.look()
			c.calm()
			settled(t, c.before, c.String)
			fmt.Fprintf(&report, "| %s | %s | %s | %s | %s | %s |\n", by, round(c.overrun), round(noticed), round(found), round(p99(c.probe.of("the clock jumps"))), round(p99(c.probe.of(quiet))))
		})
	}
	t.Logf("\n%s", report.String())
	if *chaosReport != "" && !t.Failed() {
		require.NoError(t, markdown.Section(*chaosReport, "Jumps of the machine's clock", "make chaos CHAOS_CLOCK=1", report.String()))
	}
}

// jumped changes the machine's clock while do runs, and then sets it right by the monotonic
// clock.
func jumped(t *testing.T, by time.Duration, do func()) {
	t.Helper()
	read := func(clock int32) time.Duration {
		var ts unix.Timespec
		require.NoError(t, unix.ClockGettime(clock, &ts))
		return time.Duration(ts.Nano())
	}
	set := func(to time.Duration) error {
		tv := unix.NsecToTimeval(int64(to))
		return unix.Settimeofday(&tv)
	}
	wall, steady := read(unix.CLOCK_REALTIME), read(unix.CLOCK_MONOTONIC)
	right := func() time.Duration { return wall + read(unix.CLOCK_MONOTONIC) - steady }
	require.NoError(t, set(right()+by), "this takes CAP_SYS_TIME")
	defer func() { require.NoError(t, set(right()), "THE CLOCK OF THIS MACHINE IS WRONG by %s", by) }()
	do()
}
