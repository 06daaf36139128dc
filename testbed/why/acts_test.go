package why_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/runtimes"
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

// withCPU returns a pod whose first container may use so much of a CPU.
func withCPU(p *corev1.Pod, cpu string) *corev1.Pod {
	p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	return p
}

// withScratch returns a pod whose first container has a volume of the pod's own.
func withScratch(p *corev1.Pod) *corev1.Pod {
	p.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "scratch", MountPath: "/scratch"}}
	return p
}

// fileInScratch makes a file in the volume of the only pod that has such a volume: see withScratch.
func (p *patient) fileInScratch(pod string) (*os.File, error) {
	found, err := filepath.Glob(filepath.Join(p.kubelet.Dir, "root", "pods", "*", "volumes", "kubernetes.io~empty-dir", "scratch"))
	if err != nil || len(found) != 1 {
		return nil, fmt.Errorf("not one volume of %s: %q, %v", pod, found, err)
	}
	return os.Create(filepath.Join(found[0], "stuck"))
}

// addsLater returns the act that makes kubelet run pods when a runtime has noticed that its network's file has changed.
func (p *patient) addsLater(pods ...*corev1.Pod) func() error {
	return func() error {
		time.Sleep(2 * time.Second)
		return p.adds(pods...)()
	}
}

// signals returns the act that sends a signal to the program of a pod on the primary.
func (p *patient) signals(pod string, signal unix.Signal) func() error {
	return func() error {
		_, pid, err := p.process(pod)
		if err != nil {
			return err
		}
		return unix.Kill(pid, signal)
	}
}

// killPause kills the process of the sandbox of a pod on the primary. The shim and the pod's containers live.
func (p *patient) killPause(pod string) error {
	ids, err := p.ctr(p.runtime, "containers", "ls", "-q", fmt.Sprintf(`labels."io.kubernetes.pod.name"==%s-%s,labels."io.cri-containerd.kind"==sandbox`, pod, p.kubelet.NodeName))
	if err != nil {
		return err
	}
	tasks, err := p.ctr(p.runtime, "tasks", "ls")
	if err != nil {
		return err
	}
	for line := range strings.Lines(tasks) { // ID, process and state
		words := strings.Fields(line)
		if len(words) < 3 || words[2] != "RUNNING" || !slices.Contains(strings.Fields(ids), words[0]) {
			continue
		}
		pid, err := strconv.Atoi(words[1])
		if err != nil {
			return err
		}
		return unix.Kill(pid, unix.SIGKILL)
	}
	return fmt.Errorf("no sandbox of %s runs: %q", pod, tasks)
}

// losesNetwork unmounts the network namespace of a pod on the primary, and ends its program, so that kubelet looks at the pod.
func (p *patient) losesNetwork(pod string) error {
	_, pid, err := p.process(pod)
	if err != nil {
		return err
	}
	namespace, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid)) // net:[4026532001]
	if err != nil {
		return err
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(mounts)) {
		if words := strings.Fields(line); len(words) > 4 && words[3] == namespace {
			return errors.Join(unix.Unmount(words[4], unix.MNT_DETACH), unix.Kill(pid, unix.SIGTERM))
		}
	}
	return fmt.Errorf("%s of %s is not mounted", namespace, pod)
}

// cgroup returns the cgroup of the container of a pod on the primary, in the hierarchy of a controller of version 1, and the
// container's process. The cgroup above it is the pod's.
func (p *patient) cgroup(controller, pod string) (dir string, pid int, err error) {
	_, pid, err = p.process(pod)
	if err != nil {
		return "", 0, err
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return "", 0, err
	}
	for line := range strings.Lines(string(text)) { // 4:cpu:/kubelet/podUID/ID
		words := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(words) == 3 && slices.Contains(strings.Split(words[1], ","), controller) {
			return filepath.Join("/sys/fs/cgroup", words[1], words[2]), pid, nil
		}
	}
	return "", 0, fmt.Errorf("%s is not in a cgroup of %s", pod, controller)
}

// fillsLogs mounts a file system that holds no more files over the folder with the logs of a pod, and returns the folder.
func (p *patient) fillsLogs(pod string) (string, error) {
	found, err := filepath.Glob(filepath.Join(p.kubelet.Dir, "logs", "testbed_"+pod+"-"+p.kubelet.NodeName+"_*", "app"))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("not one folder with the logs of %s: %q, %v", pod, found, err)
	}
	p.t.Cleanup(func() { _ = unix.Unmount(found[0], unix.MNT_DETACH) }) // it fails if that was done
	return found[0], unix.Mount("tmpfs", found[0], "tmpfs", 0, "size=4k,nr_inodes=1")
}

// replaces returns the act that replaces a program.
func replaces(file, text string) func() error {
	return func() error {
		return errors.Join(os.WriteFile(file+".new", []byte(text), 0o755), os.Rename(file+".new", file))
	}
}

// foreignProgram is the beginning of a program for S/390: no machine here runs it.
const foreignProgram = "\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x16\x00\x01\x00\x00\x00" +
	"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x40\x00\x38\x00\x00\x00\x40\x00\x00\x00\x00\x00"

// covers returns the act that covers a folder with itself, but one may only read there. Files that are open stay as they were.
func covers(folder string) func() error {
	return func() error {
		if err := unix.Mount(folder, folder, "", unix.MS_BIND, ""); err != nil {
			return err
		}
		return unix.Mount("", folder, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
	}
}

// deadMount returns a folder on which a FUSE file system is mounted whose server has ended.
func (p *patient) deadMount() string {
	dir := p.t.TempDir()
	server, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	require.NoError(p.t, err)
	defer unix.Close(server)
	require.NoError(p.t, unix.Mount("bucket", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", server)))
	p.t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// leaves puts an immutable file into the primary's folder of the sandbox of a pod, and returns the file.
func (p *patient) leaves(pod string) (string, error) {
	id, err := p.ctr(p.runtime, "containers", "ls", "-q",
		fmt.Sprintf(`labels."io.kubernetes.pod.name"==%s-%s,labels."io.cri-containerd.kind"==sandbox`, pod, p.kubelet.NodeName))
	if err != nil {
		return "", err
	}
	if id = strings.TrimSpace(id); id == "" {
		return "", fmt.Errorf("no sandbox of %s", pod)
	}
	found, err := filepath.Glob(filepath.Join(p.runtime.Dir, "root", "*", "sandboxes", id))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("not one folder of the sandbox of %s: %q, %v", pod, found, err)
	}
	file := filepath.Join(found[0], "leftover")
	p.t.Cleanup(func() { _ = setFlags(file, 0) }) // it fails if the file is gone
	return file, errors.Join(os.WriteFile(file, nil, 0o644), setFlags(file, immutableFlag))
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
	return setFlagsOf(f, flags)
}

// setFlagsOf sets the flags of an open file, as chattr does. Its name may have changed since.
func setFlagsOf(f *os.File, flags int) error {
	if f == nil {
		return errors.New("there is no file")
	}
	return unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags)
}

// hosts writes a runtime's configuration of the registry with a name.
func (p *patient) hosts(c *runtimes.Containerd, name, text string) {
	dir := filepath.Join(c.Dir, "certs.d", name)
	require.NoError(p.t, os.MkdirAll(dir, 0o755))
	text = "server = \"https://127.0.0.1:1\"\n" + text
	require.NoError(p.t, os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(text), 0o644))
}

// pluginFails returns the act after which the CNI plugin fails with a message when it adds a pod.
func (p *patient) pluginFails(pod, message string) func() error {
	text, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "code": 999, "msg": message})
	require.NoError(p.t, err)
	require.NotContains(p.t, string(text), "'")
	return writes(filepath.Join(p.cni, "ADD-"+pod), fmt.Sprintf("printf %%s '%s'; exit 1\n", text))
}

// onRunc returns the act after which the script of runc runs lines of shell when it makes the container of a pod, not its
// sandbox. In them, $log is the file in which runc leaves its errors.
func (p *patient) onRunc(dir, pod, lines string) func() error {
	return writes(filepath.Join(dir, pod), fmt.Sprintf(`case " $* " in *" create "*)
	words="$* "; bundle=${words#*--bundle }; bundle=${bundle%%%% *}; log=${words#*--log }; log=${log%%%% *}
	if grep -q %s-%s "$bundle/config.json" && grep -q 'container-type": *"container"' "$bundle/config.json"; then
		%s
	fi ;;
esac
`, pod, p.kubelet.NodeName, lines))
}

// runcFails returns the act after which runc fails with an error, as it logs it, when it makes the container of a pod.
func (p *patient) runcFails(dir, pod, problem string) func() error {
	line, err := runcLogs(problem)
	require.NoError(p.t, err)
	return p.onRunc(dir, pod, line)
}

// runcLogs returns a line of shell with which runc fails, and writes an error to its log.
func runcLogs(problem string) (string, error) {
	line, err := json.Marshal(map[string]string{"level": "error", "msg": problem, "time": "2026-11-29T03:12:44Z"})
	if err == nil && strings.Contains(string(line), "'") {
		err = fmt.Errorf("%s has a quotation mark of the shell", line)
	}
	return fmt.Sprintf(`printf '%%s\n' '%s' >>"$log"; exit 1`, line), err
}

// execFails writes a file for the script of runc: runc fails with an error, as it logs it, when it executes a program in a
// container.
func (p *patient) execFails(file, container, problem string) error {
	line, err := runcLogs(problem)
	if err != nil {
		return err
	}
	return writes(file, fmt.Sprintf(`case " $* " in *" exec "*%s*)
	words="$* "; log=${words#*--log }; log=${log%%%% *}
	%s ;;
esac
`, container, line))()
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

// allowsFiles returns the act after which the file system of the second runtime may hold so many files more than then.
func (p *patient) allowsFiles(more uint64) func() error {
	return func() error {
		root := filepath.Join(p.second.Dir, "root")
		var now unix.Statfs_t
		if err := unix.Statfs(root, &now); err != nil {
			return err
		}
		return unix.Mount("tmpfs", root, "tmpfs", unix.MS_REMOUNT, fmt.Sprintf("nr_inodes=%d", now.Files-now.Ffree+more))
	}
}

// connects returns the acts between which somebody has connections to criproxy's socket, and sends nothing.
func (p *patient) connects(many int) (begin, end func() error) {
	var open []net.Conn
	begin = func() error {
		for range many {
			one, err := net.Dial("unix", strings.TrimPrefix(p.proxy.Endpoint(), "unix://"))
			if err != nil {
				return err
			}
			open = append(open, one)
		}
		return nil
	}
	end = func() (err error) {
		for _, one := range open {
			err = errors.Join(err, one.Close())
		}
		return err
	}
	return begin, end
}

// watchesEvents returns the acts between which crictl has a stream of the containers' events open.
func (p *patient) watchesEvents() (begin, end func() error) {
	ctx, stop := context.WithTimeout(p.t.Context(), time.Hour) // without a bound, host.Command has a minute
	done := make(chan error, 1)
	begin = func() error {
		cmd := host.Command(ctx, p.crictl, "-r", p.proxy.Endpoint(), "-i", p.proxy.Endpoint(), "events")
		if err := cmd.Start(); err != nil {
			return err
		}
		go func() { done <- cmd.Wait() }()
		return nil
	}
	end = func() error {
		select {
		case err := <-done:
			return fmt.Errorf("the stream ended by itself: %v", err)
		default:
		}
		stop()
		<-done
		return nil
	}
	return begin, end
}
