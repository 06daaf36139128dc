package why_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/runtimes"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// Here is what the sets of nodes have in common: patterns for what an answer may or must not say, pods, and acts.
//
// A runtime's own error may stand in any answer. So "memory" is among the claims of each fault whose error is runc's, which may
// mention oom_score_adj, and "file" among those of each that is about a file.

const (
	// secondCameBack is what may be said when the second runtime was started again.
	secondCameBack = `old\.io .*(restart|gone|away|down|unavailable|refused|not ready|new process|another process|anew|ended|stopped|c[ao]me back)`
	// kubeletCameBack is what may be said when kubelet was restarted.
	kubeletCameBack = `kubelet .*(restart|stopp|gone|away|silent|new process|another process|anew|c[ao]me back)`
	// notAsked is what may be said of a pod for which kubelet asks no runtime.
	notAsked = `no (container|sandbox|calls?)|(not|never) (been )?(asked|created|started)|kubelet (has|did|does|had)`
	// byHand is what may be said when somebody besides kubelet has called the runtimes.
	byHand = `crictl|by hand|(another|other|different|second) client|not (by )?kubelet|(besides|behind|than) kubelet`
	// reconfigured is what may be said when criproxy's configuration was changed.
	reconfigured = `configur|reload`

	// imageAbsent is false of an image that the registry has.
	imageAbsent = `(image|tag) (does not|doesn't) exist|no such (image|tag)|mistyped|misspel`
	// outOfMemory is false of each pod that may use enough. A runtime's own error may mention oom_score_adj, and does not match.
	outOfMemory = `(ran|run) out of memory|memory limit`
	// programMissing is false of each fault whose error says "no such file" of something else.
	programMissing = `entry ?point|(program|command|executable|binary|image) (is missing|is not|was not|does not|did not|is lacking)`
	// programAbsent is false of each program that is there, if kubelet names the right one.
	programAbsent = `entry ?point|(program|command|executable|binary) (is missing|is not|was not|does not|did not|is lacking)`
	// addressesOut is false of each network that has addresses, and whose plugins are installed.
	addressesOut = `no (more |free )?(ip )?address|address(es)? (is |are )?(left|free|available)|plugin (binary |program )?(is missing|is not installed|is not there)|` +
		`not ready|refused|killed`
)

// addsLater returns the act that makes kubelet run pods when a runtime has noticed that its network's file has changed.
func (p *patient) addsLater(pods ...*corev1.Pod) func() error {
	return func() error {
		time.Sleep(2 * time.Second)
		return p.adds(pods...)()
	}
}

// immutableFlag is that of a file that nobody may change or remove: FS_IMMUTABLE_FL.
const immutableFlag = 0x10

// setFlags sets the flags of a file, as chattr does.
func setFlags(file string, flags int) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags)
}

// configures returns the act that replaces a text in the configuration of the second runtime, and starts it again.
func (p *patient) configures(before, after string) func() error {
	return func() error {
		file := filepath.Join(p.second.Dir, "config.toml")
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		changed := strings.ReplaceAll(string(text), before, after)
		if changed == string(text) {
			return fmt.Errorf("%s does not contain %q", file, before)
		}
		return errors.Join(os.WriteFile(file, []byte(changed), 0o644), p.second.Terminate(p.t.Context()), p.second.Start(p.t.Context()))
	}
}

// push puts an image into the registry that is testbed/app:1 but for its configuration, and returns the digest of that.
func (p *patient) push(image string, change func(*v1.Config)) v1.Hash {
	base := p.pushed(p.t, "testbed/app:1")
	file, err := base.ConfigFile()
	require.NoError(p.t, err)
	file = file.DeepCopy()
	change(&file.Config)
	made, err := mutate.ConfigFile(base, file)
	require.NoError(p.t, err)
	require.NoError(p.t, p.registry.Push(image, made))
	digest, err := made.ConfigName()
	require.NoError(p.t, err)
	return digest
}

// sole returns the only container of a kind, container or sandbox, that a pod has on a runtime.
func (p *patient) sole(on *runtimes.Containerd, kind, pod string) (string, error) {
	id, err := p.ctr(on, "containers", "ls", "-q",
		fmt.Sprintf(`labels."io.kubernetes.pod.name"==%s-%s,labels."io.cri-containerd.kind"==%s`, pod, p.kubelet.NodeName, kind))
	if err != nil {
		return "", err
	}
	if id = strings.TrimSpace(id); !regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(id) {
		return "", fmt.Errorf("not one %s of %s: %q", kind, pod, id)
	}
	return id, nil
}

// shimOn returns the process of the shim of a pod on a runtime.
func (p *patient) shimOn(on *runtimes.Containerd, pod string) (pid int, err error) {
	id, err := p.sole(on, "sandbox", pod)
	if err != nil {
		return 0, err
	}
	return shimOf(p.t.Context(), id)
}

// shimOf returns the process of a sandbox's shim.
func shimOf(ctx context.Context, sandbox string) (pid int, err error) {
	out, err := host.Command(ctx, "pgrep", "-f", "containerd-shim-runc-v2.*-id "+sandbox).Output()
	if err != nil {
		return 0, fmt.Errorf("finding the shim of the sandbox %s: %w", sandbox, err)
	}
	return strconv.Atoi(strings.Fields(string(out))[0])
}

// process returns the container of a pod on the primary, and its process.
func (p *patient) process(pod string) (id string, pid int, err error) {
	if id, err = p.sole(p.runtime, "container", pod); err != nil {
		return "", 0, err
	}
	tasks, err := p.ctr(p.runtime, "tasks", "ls")
	if err != nil {
		return "", 0, err
	}
	for line := range strings.Lines(tasks) {
		if words := strings.Fields(line); len(words) > 1 && words[0] == id {
			pid, err = strconv.Atoi(words[1])
			return id, pid, err
		}
	}
	return "", 0, fmt.Errorf("no process of %s in %q", pod, tasks)
}

// runs returns the handler that runs a command in a container.
func runs(command ...string) corev1.ProbeHandler {
	return corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: command}}
}

// pushWithFile puts an image into the registry that is testbed/app:1 with one more layer, which holds a file that cannot be
// compressed. It returns the layer and the path of the file, which no other image has: a name and some random digits.
func (p *patient) pushWithFile(image, name string) (layer v1.Layer, file string) {
	content := make([]byte, 64<<10)
	_, err := rand.Read(content)
	require.NoError(p.t, err)
	file = fmt.Sprintf("%s-%x", name, content[:6])
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	require.NoError(p.t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: file, Mode: 0o644, Size: int64(len(content))}))
	_, err = w.Write(content)
	require.NoError(p.t, errors.Join(err, w.Close()))
	layer, err = tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(archive.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
	require.NoError(p.t, err)
	made, err := mutate.AppendLayers(p.pushed(p.t, "testbed/app:1"), layer)
	require.NoError(p.t, err)
	require.NoError(p.t, p.registry.Push(image, made))
	return layer, file
}

// pushed returns an image of the registry.
func (n *node) pushed(t *testing.T, image string) v1.Image {
	t.Helper()
	ref, err := name.ParseReference(n.registry.Image(image), name.Insecure)
	require.NoError(t, err)
	found, err := remote.Image(ref)
	require.NoError(t, err)
	return found
}
