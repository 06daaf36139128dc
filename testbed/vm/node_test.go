package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/criproxy/criproxy/internal/testing/untested"
)

const (
	two           = "two.vm" // the second runtime's name
	image         = registry + "/testbed/app:1"
	targetRuntime = "kubernetes.io/target-runtime"
)

// A node is the machine, with helpers for tests.
type node struct {
	testing.TB
	*Machine
	began time.Time
}

// newNode makes a node, with more files in its payload, and boots it.
func newNode(t *testing.T, more ...func(t *testing.T, dir string)) *node {
	t.Helper()
	if err := leftOut(); err != nil {
		if *withBoot {
			untested.Skip(t, err)
		}
		t.Skip("left out: ", err)
	}
	image, err := GetImage(t.Context(), os.Stderr)
	require.NoError(t, err)
	content := payload(t)
	for _, add := range more {
		add(t, content)
	}
	dir, err := os.MkdirTemp("", "vm-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	machine, err := NewMachine(t.Context(), dir, image, content)
	require.NoError(t, err)
	n := &node{TB: t, Machine: machine, began: time.Now()}
	t.Cleanup(func() {
		if t.Failed() {
			n.explain()
		}
		if t.Failed() && *stayOn {
			fmt.Fprintf(os.Stderr, "the machine is on, in %s: interrupt this to end it\n", dir)
			time.Sleep(time.Hour)
		}
		require.NoError(t, machine.PowerOff())
	})
	n.power()
	return n
}

// explain shows what happened in the machine.
func (n *node) explain() {
	n.Log(n.Console(40))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, unit := range []string{"criproxy", "kubelet", "containerd", "two"} {
		said, err := n.Run(ctx, "journalctl", "-b", "-u", unit, "-n", "60", "--no-pager", "-o", "short-monotonic")
		n.Logf("the log of %s (%v):\n%s", unit, err, said)
	}
}

// say prints progress.
func (n *node) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "vm %4.0fs  %s\n", time.Since(n.began).Seconds(), fmt.Sprintf(format, args...))
}

// power switches the machine on.
func (n *node) power() {
	n.Helper()
	n.say("booting with %s", n.accel)
	ctx, cancel := context.WithTimeout(n.Context(), patience)
	defer cancel()
	require.NoError(n, n.PowerOn(ctx))
	n.booted()
}

// reboot reboots the machine in an orderly way.
func (n *node) reboot() {
	n.Helper()
	n.say("rebooting")
	ctx, cancel := context.WithTimeout(n.Context(), patience)
	defer cancel()
	require.NoError(n, n.Reboot(ctx))
	n.booted()
}

// booted returns when all units that start at boot have started.
func (n *node) booted() {
	n.Helper()
	n.say("booted")
	state, err := n.try("systemctl", "is-system-running", "--wait")
	if err != nil {
		failed, _ := n.try("systemctl", "--failed", "--no-legend", "--plain")
		require.NoError(n, err, "%s\n%s", state, failed)
	}
	n.say("all units are up")
}

// try runs a command that may fail.
func (n *node) try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(n.Context(), patience)
	defer cancel()
	out, err := n.Run(ctx, args...)
	return strings.TrimSpace(out), err
}

// run runs a command that must succeed, and returns its output.
func (n *node) run(args ...string) string {
	n.Helper()
	out, err := n.try(args...)
	require.NoError(n, err, out)
	return out
}

// sh does the same with a script.
func (n *node) sh(script string) string {
	n.Helper()
	return n.run("sh", "-ec", script)
}

// write makes a file, under its name only when it is whole.
func (n *node) write(path, content string) {
	n.Helper()
	ctx, cancel := context.WithTimeout(n.Context(), patience)
	defer cancel()
	_, err := n.RunWith(ctx, content, "sh", "-ec", `mkdir -p "${1%/*}"; cat > "${1%/*}/.new"; mv "${1%/*}/.new" "$1"`, "sh", path)
	require.NoError(n, err)
}

// show returns a property of a unit.
func (n *node) show(unit, property string) string {
	n.Helper()
	return n.run("systemctl", "show", "-p", property, "--value", unit)
}

// eventually waits until a condition holds.
func (n *node) eventually(what string, is func() error) {
	n.Helper()
	ctx, cancel := context.WithTimeout(n.Context(), patience)
	defer cancel()
	for {
		err := is()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			require.NoError(n, err, "waited for "+what)
		case <-time.After(300 * time.Millisecond): // each try costs the machine CPU time
		}
	}
}

// pods returns kubelet's pods, by the name of the manifest.
func (n *node) pods() (map[string]corev1.Pod, error) {
	out, err := n.try("/payload/bin/guest", "get", "http://127.0.0.1:10255/pods")
	if err != nil {
		return nil, err
	}
	var list corev1.PodList
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return nil, err
	}
	all := map[string]corev1.Pod{}
	for _, pod := range list.Items {
		all[strings.TrimSuffix(pod.Name, "-testbed")] = pod
	}
	return all, nil
}

// ready returns kubelet's pods once these are running and ready, and restarted that often at least.
func (n *node) ready(restarts int32, names ...string) (all map[string]corev1.Pod) {
	n.Helper()
	n.eventually("pods to be ready", func() (err error) {
		if all, err = n.pods(); err != nil {
			return err
		}
		for _, name := range names {
			pod, ok := all[name]
			if !ok || len(pod.Status.ContainerStatuses) == 0 {
				err = errors.Join(err, fmt.Errorf("%s: %s %s", name, pod.Status.Phase, pod.Status.Message))
				continue
			}
			if c := pod.Status.ContainerStatuses[0]; !c.Ready || c.State.Running == nil || c.RestartCount < restarts {
				status, _ := json.Marshal(c)
				err = errors.Join(err, fmt.Errorf("%s: %s", name, status))
			}
		}
		return err
	})
	return all
}

// addPods writes manifests.
func (n *node) addPods(pods ...*corev1.Pod) {
	n.Helper()
	for _, pod := range pods {
		data, err := json.Marshal(pod)
		require.NoError(n, err)
		n.write("/etc/kubernetes/manifests/"+pod.Name+".json", string(data))
	}
}
