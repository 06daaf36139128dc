package vm

import (
	"errors"
	"fmt"
	"strings"
	"time"

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

// noneFailed asserts that no list has failed, and that none was short.
func (n *node) noneFailed(watches ...*watch) {
	n.Helper()
	for _, w := range watches {
		events := w.events()
		n.say("%d lists", calls(events))
		assert.Empty(n, failures(events))
		neverMissing(n, events, pods...)
	}
}

func (n *node) upgradesUnderLoad() {
	still, seen := n.undisturbed(pods...), n.watched()
	load, stop := n.underLoad()
	n.becomes(versions[1])
	n.noneFailed(load, seen)
	stop()
	still()
}

// becomes installs the package of a version, whose process takes over from the one before.
func (n *node) becomes(version string) {
	n.Helper()
	pid, socket, restarts := n.process()
	n.run("dpkg", "-i", "/payload/deb/"+version+".deb")
	asked := time.Now()
	n.eventually("the other one to serve", func() error {
		now := n.show("criproxy", "MainPID")
		if now != pid {
			return nil
		}
		if time.Since(asked) > 90*time.Second { // on a busy machine an emulated process may not start within the minute that it has
			asked = time.Now()
			n.say("the handover has failed, once more")
			n.run("kill", "-USR2", pid)
		}
		return fmt.Errorf("process %s serves", now)
	})
	report, err := n.status()
	require.NoError(n, err)
	assert.Equal(n, version, report.Version)
	_, sameSocket, sameRestarts := n.process()
	assert.Equal(n, socket, sameSocket)
	assert.Equal(n, restarts, sameRestarts)
	assert.Contains(n, n.run("cat", "/etc/criproxy/config.yaml"), two, "the configuration stays")
}

// goesBackInAnOutage installs the previous release, and then this one again, by a handover and by a restart, while the
// second runtime is away, calls are under way and all is captured. Its pods stay in the lists.
func (n *node) goesBackInAnOutage() {
	n.sh("printf 'capture: {path: /var/log/criproxy/calls.jsonl}\n' >> /etc/criproxy/config.yaml && systemctl restart criproxy")
	n.bothAreUp()
	still, seen := n.undisturbed(pods...), n.watched()
	load, stop := n.underLoad()
	n.run("systemctl", "stop", "two")
	n.eventually("the second runtime to be gone", func() error {
		report, err := n.status()
		if err == nil && report.Backends[1].State != "gone" {
			err = fmt.Errorf("it is %s", report.Backends[1].State)
		}
		return err
	})
	works := func() {
		n.pluginIsReady()
		n.run("crictl", "exec", n.containerOf("one"), "app", "print", "here")
	}
	for _, version := range versions {
		ended := n.underWay()
		n.becomes(version)
		require.NoError(n, ended(), "a call and a stream that were under way")
		works()
	}
	for _, version := range versions {
		n.restartsAs(version)
		works()
	}
	n.run("systemctl", "start", "two")
	n.bothAreUp()
	n.noneFailed(load, seen)
	stop()
	still()
	stats := n.sh("for f in /var/log/criproxy/calls*.jsonl; do criproxy view -stats $f; done")
	assert.Contains(n, stats, "ListPodSandbox", "the capture of all processes")
	n.sh("sed -i /^capture:/d /etc/criproxy/config.yaml && systemctl restart criproxy")
	n.bothAreUp()
}

// containerOf returns the id of the container of a pod on the primary.
func (n *node) containerOf(pod string) string {
	n.Helper()
	return strings.TrimPrefix(n.ready(0, pod)[pod].Status.ContainerStatuses[0].ContainerID, "containerd://")
}

// underWay begins a call and a stream of exec on the primary, and returns a function that waits for their ends.
func (n *node) underWay() (ended func() error) {
	n.Helper()
	id, results := n.containerOf("one"), make(chan error, 2)
	for _, sync := range []string{"-s=true", "-s=false"} {
		go func() {
			out, err := n.try("crictl", "-t", "5m", "exec", sync, id, "app", "wait", "30s", "then", "print", "late")
			if err == nil && !strings.Contains(out, "late") {
				err = fmt.Errorf("exec %s said %q", sync, out)
			}
			results <- err
		}()
	}
	n.eventually("both commands to run", func() error {
		running, err := n.try("pgrep", "-f", "-c", "^app wait 30s")
		if err == nil && running != "2" {
			err = fmt.Errorf("%s run", running)
		}
		return err
	})
	return func() error { return errors.Join(<-results, <-results) }
}

// restartsAs puts the program of a version in place of the one that is installed, without a handover, and restarts it.
func (n *node) restartsAs(version string) {
	n.Helper()
	n.sh("dpkg-deb --fsys-tarfile /payload/deb/" + version + ".deb | tar -xO ./usr/bin/criproxy > /usr/bin/criproxy.new; chmod 755 /usr/bin/criproxy.new; mv /usr/bin/criproxy.new /usr/bin/criproxy")
	pid, socket, _ := n.process()
	n.run("systemctl", "restart", "criproxy")
	now, sameSocket, _ := n.process()
	assert.NotEqual(n, pid, now)
	assert.Equal(n, socket, sameSocket)
	report, err := n.status()
	require.NoError(n, err)
	assert.Equal(n, version, report.Version)
}

func (n *node) restarts() {
	still, seen := n.undisturbed(pods...), n.watched()
	load, stop := n.underLoad()
	pid, socket, _ := n.process()
	n.run("systemctl", "restart", "criproxy")
	newPID, sameSocket, _ := n.process()
	assert.NotEqual(n, pid, newPID)
	assert.Equal(n, socket, sameSocket)
	n.noneFailed(load, seen)
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
