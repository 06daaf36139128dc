package vm

import (
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// late is a drop-in with which the second runtime starts long after criproxy and kubelet.
const late = "[Service]\nExecStartPre=/bin/sleep 20\n"

func (n *node) outlivesAReboot() { n.comesBack(n.reboot) }

func (n *node) outlivesAPowerCut() {
	n.write("/etc/systemd/system/two.service.d/late.conf", late)
	n.run("systemctl", "daemon-reload")
	n.run("sync", "/etc/systemd/system/two.service.d/late.conf") // so that the power cut does not lose the file
	n.comesBack(func() {
		n.say("cutting the power")
		require.NoError(n, n.PowerOff())
		n.power()
		require.Contains(n, n.show("two", "DropInPaths"), "late.conf")
	})
}

// comesBack reboots the machine, and asserts that lists show nothing from the previous boot as running, and that all
// pods come back, restarted as often as without criproxy.
func (n *node) comesBack(boot func()) {
	before := n.ready(0, pods...)
	living := livingIn(last(n.fromTheBoot().events()))
	assert.NotEmpty(n, living)
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
	n.pluginIsReady()
	n.haveTheirCgroups(after)
	n.say("lists that failed since the boot: %q", failures(events))
	n.findsNothingWrong()
}

// fromTheBoot returns the events since the machine has booted.
func (n *node) fromTheBoot() *watch { return &watch{node: n, file: "/run/watch"} }
