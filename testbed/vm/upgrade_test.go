package vm

import (
	"fmt"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// process returns which criproxy serves, its socket, and how often systemd had to start it.
func (n *node) process() (pid, socket, restarts string) {
	n.Helper()
	return n.show("criproxy", "MainPID"), n.run("stat", "-c", "%i", "/run/criproxy.sock"), n.show("criproxy", "NRestarts")
}

// undisturbed returns a function that asserts that the pods are still the same and have not been restarted.
func (n *node) undisturbed(names ...string) (still func()) {
	n.Helper()
	before := n.ready(0, names...)
	return func() {
		n.Helper()
		after := n.ready(0, names...)
		for _, name := range names {
			assert.Equal(n, before[name].Status.ContainerStatuses[0].ContainerID, after[name].Status.ContainerStatuses[0].ContainerID, name)
			assert.Equal(n, before[name].Status.ContainerStatuses[0].RestartCount, after[name].Status.ContainerStatuses[0].RestartCount, name)
		}
	}
}

func (n *node) upgradesUnderLoad() {
	still, seen := n.undisturbed(pods...), n.watched()
	load, stop := n.underLoad()
	pid, socket, restarts := n.process()
	n.run("dpkg", "-i", "/payload/deb/"+versions[1]+".deb")
	n.eventually("the new one to serve", func() error {
		if now := n.show("criproxy", "MainPID"); now == pid {
			return fmt.Errorf("process %s serves", now)
		}
		return nil
	})
	report, err := n.status()
	require.NoError(n, err)
	assert.Equal(n, versions[1], report.Version)
	_, sameSocket, sameRestarts := n.process()
	assert.Equal(n, socket, sameSocket)
	assert.Equal(n, restarts, sameRestarts)
	assert.Contains(n, n.run("cat", "/etc/criproxy/config.yaml"), two, "the configuration stays")
	for _, w := range []*watch{load, seen} {
		events := w.events()
		n.say("%d lists", calls(events))
		assert.Empty(n, failures(events))
		neverMissing(n, events, pods...)
	}
	stop()
	still()
}

func (n *node) restarts() {
	still, seen := n.undisturbed(pods...), n.watched()
	load, stop := n.underLoad()
	pid, socket, _ := n.process()
	n.run("systemctl", "restart", "criproxy")
	newPID, sameSocket, _ := n.process()
	assert.NotEqual(n, pid, newPID)
	assert.Equal(n, socket, sameSocket)
	for _, w := range []*watch{load, seen} {
		events := w.events()
		assert.Empty(n, failures(events))
		neverMissing(n, events, pods...)
	}
	stop()
	still()
}

func (n *node) crashes() {
	still, seen := n.undisturbed(pods...), n.watched()
	pid, socket, _ := n.process()
	n.run("kill", "-9", pid)
	n.eventually("systemd to start it again", func() error {
		if now, _, restarts := n.process(); now == pid || now == "0" || restarts != "1" {
			return fmt.Errorf("process %s, restarted %s times", now, restarts)
		}
		return nil
	})
	_, sameSocket, _ := n.process()
	assert.Equal(n, socket, sameSocket)
	events := seen.events()
	for _, f := range failures(events) { // a call that was under way
		assert.Contains(n, f, "Unavailable")
	}
	neverMissing(n, events, pods...)
	still()
	n.findsNothingWrong()
}
