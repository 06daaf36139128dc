package vm

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// late is a drop-in with which the second runtime starts long after criproxy and kubelet.
const late = "[Service]\nExecStartPre=/bin/sleep 20\n"

// criproxy writes its recording when it ends. Kubelet ends before it, and asks every second until then.
func (n *node) outlivesAReboot() { n.comesBack(n.reboot, 5*time.Second) }

func (n *node) outlivesAPowerCut() {
	n.write("/etc/systemd/system/two.service.d/late.conf", late)
	n.run("systemctl", "daemon-reload")
	n.run("sync", "/etc/systemd/system/two.service.d/late.conf") // so that the power cut does not lose the file
	// libcni does not wait for the disk either: without the result of the last ADD, containerd cannot remove a pod's sandbox.
	n.run("find", "/var/lib/cni", "-type", "f", "-exec", "sync", "{}", "+")
	n.comesBack(func() {
		n.say("cutting the power")
		require.NoError(n, n.PowerOff())
		n.power()
		require.Contains(n, n.show("two", "DropInPaths"), "late.conf")
	}, 50*time.Second) // the recorder waits for the disk every 20s, at the lowest priority, and an emulated machine is busy
}

// comesBack reboots the machine, and asserts that lists show nothing from the previous boot as running, that all pods come
// back, restarted as often as without criproxy, and that the recorder has the calls of the last minute but for what may be
// lost.
func (n *node) comesBack(boot func(), lost time.Duration) {
	before := n.ready(0, pods...)
	living := livingIn(last(n.fromTheBoot().events()))
	assert.NotEmpty(n, living)
	at := n.clock()
	boot()
	after := n.ready(1, pods...)
	for _, name := range pods {
		c := after[name].Status.ContainerStatuses[0]
		was := before[name].Status.ContainerStatuses[0]
		assert.Equal(n, was.RestartCount+1, c.RestartCount, name)
		assert.NotEqual(n, was.ContainerID, c.ContainerID, name)
		assert.Equal(n, before[name].UID, after[name].UID, name)
	}
	events := n.fromTheBoot().events()
	for _, e := range events {
		for id := range livingIn(e) {
			assert.False(n, living[id], "%.1fs after the boot: %s %s%s is of the boot before", e.Uptime, id, e.Pods[id], e.Containers[id])
		}
	}
	n.hasRecorded(at, lost)
	n.pluginIsReady()
	n.haveTheirCgroups(after)
	n.say("lists that failed since the boot: %q", failures(events))
	n.findsNothingWrong()
}

// fromTheBoot returns the events since the machine has booted.
func (n *node) fromTheBoot() *watch { return &watch{node: n, file: "/run/watch"} }

// clock is the time of the machine's clock.
func (n *node) clock() time.Time {
	n.Helper()
	seconds, err := strconv.ParseInt(n.run("date", "+%s"), 10, 64)
	require.NoError(n, err)
	return time.Unix(seconds, 0)
}

// hasRecorded asserts that criproxy shows the calls of the minute before a time, but for the last ones that may be lost.
func (n *node) hasRecorded(at time.Time, lost time.Duration) {
	n.Helper()
	ago := n.clock().Sub(at)
	ends := strings.Split(n.sh(fmt.Sprintf("criproxy dump -since %s -until %s | grep '\"kind\":\"start\"' > /run/recorded; head -n 1 /run/recorded; tail -n 1 /run/recorded", ago+time.Minute, ago)), "\n")
	require.Len(n, ends, 2, "calls of the minute before")
	var first, last struct{ Time time.Time }
	require.NoError(n, json.Unmarshal([]byte(ends[0]), &first))
	require.NoError(n, json.Unmarshal([]byte(ends[1]), &last))
	n.say("the recorder has calls from %s to %s before the boot", at.Sub(first.Time), at.Sub(last.Time))
	assert.Greater(n, at.Sub(first.Time), 50*time.Second)
	assert.Less(n, at.Sub(last.Time), lost)
}
