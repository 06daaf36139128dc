package vm

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/kubelet"
)

// follows docs/first-node.md with its own commands, from a node without criproxy back to one without criproxy.
func (n *node) followsThePage() {
	source, err := build.SourceDir()
	require.NoError(n, err)
	page, err := os.ReadFile(filepath.Join(source, "../docs/first-node.md"))
	require.NoError(n, err)
	deb := regexp.MustCompile(`criproxy_[0-9.]+-1_amd64\.deb`).FindString(string(page))
	n.sh(`mv /etc/systemd/system/kubelet.service.d/20-criproxy.conf /root/
		systemctl daemon-reload
		systemctl enable --now kubelet
		cp /payload/deb/` + versions[1] + `.deb /root/` + deb)
	n.addPods(kubelet.StaticPod("visitor", image, "serve"))
	n.ready(0, "visitor")
	still := n.undisturbed("visitor")
	steps := strings.Split(string(page), "\n## ")[1:]
	require.Len(n, steps, 7)
	for i, step := range steps {
		title, _, _ := strings.Cut(step, "\n")
		_, rest, ok := strings.Cut(step, "```sh\n")
		require.True(n, ok, "%s: no commands", title)
		commands, _, _ := strings.Cut(rest, "```")
		if i+1 == 2 || i+1 == 4 { // the other steps are undone in step 7
			n.sh("cd /root\n" + commands)
			undo := regexp.MustCompile("\\*\\*Undo:\\*\\* `([^`]+)`").FindStringSubmatch(step)
			require.NotNil(n, undo, title)
			n.say("%s\n%s", undo[0], n.sh(undo[1]))
			still()
			switch i + 1 {
			case 2:
				n.isClean()
			case 4:
				assert.Equal(n, "disabled", n.show("criproxy", "UnitFileState"))
				assert.Equal(n, "inactive", n.show("criproxy", "ActiveState"))
			}
		}
		out := n.sh("cd /root\n" + commands)
		n.say("%s\n%s", title, out)
		still()
		switch i + 1 {
		case 4:
			assert.Contains(n, out, "visitor", "crictl sees the pod")
			n.bothAreUp()
		case 6:
			assert.Regexp(n, `testbed\s+visitor-testbed\s+primary`, out)
			assert.Contains(n, out, "ready")
			assert.Contains(n, n.run("cat", fmt.Sprintf("/proc/%s/cmdline", n.show("kubelet", "MainPID"))), "unix:///run/criproxy.sock")
		case 7:
			assert.NotContains(n, n.run("cat", fmt.Sprintf("/proc/%s/cmdline", n.show("kubelet", "MainPID"))), "criproxy")
			n.isClean()
		}
	}
	n.run("rm", "/etc/kubernetes/manifests/visitor.json")
	n.eventually("the pod to end", func() error {
		left, err := n.try("crictl", "-r", "unix:///run/containerd/containerd.sock", "pods", "-q", "--state", "ready")
		if err == nil && left != "" {
			err = fmt.Errorf("there is %s", left)
		}
		return err
	})
	n.sh(`systemctl disable --now kubelet
		mv /root/20-criproxy.conf /etc/systemd/system/kubelet.service.d/
		systemctl daemon-reload`)
}

// isClean asserts that no program, configuration or state of criproxy is left.
func (n *node) isClean() {
	n.Helper()
	left, _ := n.try("sh", "-c", "ls -d /usr/bin/criproxy /etc/criproxy /var/lib/criproxy 2>/dev/null")
	assert.Empty(n, left)
}
