package vm

import (
	"fmt"
	"strings"

	"github.com/stretchr/testify/assert"
)

// path is containerd's own socket, which kubelet uses by default.
const path = "/run/containerd/containerd.sock"

// takesThePath puts criproxy at containerd's path, as docs/migration.md says, and makes kubelet use its default path.
func (n *node) takesThePath() {
	still := n.undisturbed(pods...)
	n.run("criproxy", "install", "-takeover", path)
	n.sh(`rm /etc/systemd/system/kubelet.service.d/20-criproxy.conf
		sed -i s,/run/criproxy.sock,` + path + `, /etc/systemd/system/watch.service /etc/crictl.yaml
		systemctl daemon-reload
		systemctl restart containerd.service
		systemctl enable criproxy.service && systemctl restart criproxy.service
		systemctl restart kubelet watch`)
	still()
	id := n.ready(0, "one")["one"].Status.ContainerStatuses[0].ContainerID
	assert.Contains(n, n.run("ctr", "-n", "k8s.io", "containers", "ls", "-q"), strings.TrimPrefix(id, "containerd://"))
	n.bothAreUp()
	n.findsNothingWrong()
	n.checksOut()
}

// isRemoved removes the package after the last pod of the second runtime has gone: containerd has its path back, and
// kubelet and the pods of the first runtime keep running.
func (n *node) isRemoved() {
	n.run("rm", "/etc/kubernetes/manifests/two.json")
	n.eventually("the pod of the second runtime to end", func() error {
		left, err := n.try("crictl", "-r", "unix:///run/two/containerd.sock", "pods", "-q", "--state", "ready")
		if err == nil && left != "" {
			err = fmt.Errorf("there is %s", left)
		}
		return err
	})
	still := n.undisturbed("plugin", "one")
	n.run("dpkg", "-r", "criproxy")
	n.run("cmp", "/etc/containerd/config.toml", "/payload/root/etc/containerd/config.toml")
	assert.Equal(n, "active", n.show("containerd", "ActiveState"))
	still()
	_, err := n.try("pidof", "criproxy")
	assert.Error(n, err, "a process of it is left")
}
