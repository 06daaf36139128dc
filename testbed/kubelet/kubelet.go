package kubelet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// A Kubelet is a real kubelet. It needs only a CRI socket: its pods are static pods, from [Kubelet.AddManifest], and
// those of an API server if Config.Kubeconfig is set. It uses only its own folder, cgroup and ports. Paths that kubelet
// cannot do without (/var/lib/kubelet, /var/log/containers, sysctls of the machine) are replaced by files of the
// folder, in its own mount namespace.
//
// Methods may be called from any goroutine, but only one at a time of those that change the state (Start, Kill,
// Terminate, Freeze, Thaw, Destroy). Pods keep running when the kubelet is killed or terminated. Start starts it again.
type Kubelet struct {
	Config       // with defaults; must not be changed
	host.Process // the kubelet itself
	ports        ports
}

// Start starts an instance and returns when it looks after pods. If it does not come up, Start removes
// it again, and the error holds the end of its log.
func Start(ctx context.Context, config Config) (*Kubelet, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	k := &Kubelet{Config: config, Process: host.NewProcess("kubelet "+config.Name, filepath.Join(config.Dir, "kubelet"))}
	if _, err := os.Stat(k.at(manifestName)); err == nil {
		return nil, fmt.Errorf("testbed: starting kubelet %s: %s already holds an instance (remove it with host.Clean)", config.Name, config.Dir)
	}
	free, err := host.FreePorts(3)
	if err == nil {
		k.ports = ports{free[0], free[1], free[2]}
		err = k.prepare()
	}
	if err == nil {
		err = k.Start(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, k.Destroy(ctx))
	}
	return k, nil
}

func (k *Kubelet) at(name string) string { return filepath.Join(k.Dir, name) }

// prepare makes everything but the process.
func (k *Kubelet) prepare() error {
	for _, dir := range []string{"root", "manifests", "logs", "plugins", "sysctl", "tmp"} {
		if err := os.MkdirAll(k.at(dir), 0o755); err != nil {
			return fmt.Errorf("testbed: making the folders of %s: %w", k.Title(), err)
		}
	}
	for name, value := range sysctls {
		if err := os.WriteFile(k.sysctl(name), []byte(value+"\n"), 0o644); err != nil {
			return fmt.Errorf("testbed: making the sysctls of %s: %w", k.Title(), err)
		}
	}
	data, err := json.MarshalIndent(k.Config, "", "  ")
	if err == nil {
		err = os.WriteFile(k.at(manifestName), data, 0o644)
	}
	if err != nil {
		return fmt.Errorf("testbed: writing the instance's manifest: %w", err)
	}
	// The volumes that the kubelet mounts must reach the runtimes. This mount is made before everything else
	// outside of the folder, and removed last: host.Instances finds a kubelet by it.
	if err := host.ShareMount(k.at("root")); err != nil {
		return err
	}
	if err := host.MakeCgroup(k.cgroup()); err != nil {
		return err
	}
	return k.writeConfig()
}

func (k *Kubelet) sysctl(name string) string {
	return filepath.Join(k.at("sysctl"), strings.ReplaceAll(name, "/", "."))
}

// cgroup returns the parent of the cgroups of all pods.
func (k *Kubelet) cgroup() string { return host.Cgroup(k.Name, k.Dir) }

// Start starts the process, or starts it again after Kill or Terminate, and returns when it looks after pods.
func (k *Kubelet) Start(ctx context.Context) error {
	argv := []string{
		k.Binaries.Kubelet,
		"--config", k.at("config.yaml"),
		"--root-dir", k.at("root"),
		"--cert-dir", k.at("pki"),
		"--hostname-override", k.NodeName,
		"--v", strconv.Itoa(k.Verbosity),
	}
	if k.DropIn != "" {
		argv = append(argv, "--config-dir", k.at("conf.d"))
	}
	if k.Kubeconfig != "" {
		argv = append(argv, "--kubeconfig", k.Kubeconfig)
	}
	argv = append(argv, k.Flags...)
	err := host.InMountNamespace(func() error {
		if err := k.seclude(); err != nil {
			return err
		}
		return k.Process.Start(argv, append(host.Environ("PATH", "TMPDIR"), "PATH="+os.Getenv("PATH"), "TMPDIR="+k.at("tmp")))
	})
	if err != nil {
		return err
	}
	return k.WaitReady(ctx)
}

// seclude sets up this thread's mount namespace as the kubelet must see it.
func (k *Kubelet) seclude() error {
	if err := host.SecludeMounts(k.at("root")); err != nil {
		return err
	}
	for name := range sysctls {
		target := filepath.Join("/proc/sys", name)
		if _, err := os.Stat(target); err != nil {
			continue // the kubelet will not use it either
		}
		if err := host.Bind(k.sysctl(name), target); err != nil {
			return err
		}
	}
	if k.RunCRIO != "" {
		// If there is no /run/crio, the folder that covers /run must have one.
		if err := os.Symlink(".", filepath.Join(k.RunCRIO, "crio")); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := host.Cover("/run/crio", k.RunCRIO); err != nil {
			return err
		}
	}
	return errors.Join(
		host.Cover("/var/lib/kubelet", k.at("var-lib-kubelet")),
		host.Cover("/var/log/containers", k.at("var-log-containers")),
	)
}

// WaitReady waits until the kubelet is healthy and has listed the pods of its runtime. It fails at once if the
// process has ended, with the end of its log, and after a minute if ctx has no deadline.
func (k *Kubelet) WaitReady(ctx context.Context) error {
	ctx, cancel := host.Bounded(ctx)
	defer cancel()
	err := k.Await(ctx, "to be ready", func() error {
		if err := k.healthy(ctx); err != nil {
			return err
		}
		_, err := k.PLEGAge(ctx)
		return err
	})
	if err != nil {
		return fmt.Errorf("%w\n%s", err, k.Complaints(40))
	}
	return nil
}

// StaticPod returns a pod in the namespace "testbed" with one container, "app", that runs the test program of an
// image with args. Without args the program sleeps until it is stopped. The caller may edit the pod before AddManifest.
func StaticPod(name, image string, args ...string) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "testbed", Annotations: map[string]string{}},
		Spec: corev1.PodSpec{
			DNSPolicy:  corev1.DNSDefault, // the others need a cluster
			Containers: []corev1.Container{{Name: "app", Image: image, Args: args}},
		},
	}
}

// AddManifest makes the kubelet run a pod, which replaces any pod with the same name. The kubelet learns of it at once, or
// when it is started.
func (k *Kubelet) AddManifest(pod *corev1.Pod) error {
	data, err := json.MarshalIndent(pod, "", "  ")
	if err == nil {
		err = host.WriteWhole(k.manifest(pod.Name), data)
	}
	if err != nil {
		return fmt.Errorf("testbed: adding pod %s: %w", pod.Name, err)
	}
	return nil
}

// RemoveManifest makes the kubelet remove a pod.
func (k *Kubelet) RemoveManifest(name string) error {
	if err := os.Remove(k.manifest(name)); err != nil {
		return fmt.Errorf("testbed: removing pod %s: %w", name, err)
	}
	return nil
}

func (k *Kubelet) manifest(name string) string {
	return filepath.Join(k.at("manifests"), name+".json")
}

// Destroy removes the instance: first its pods, in an orderly way if the runtime answers, then the kubelet,
// then by force whatever is left, and its folder. It works in any state and may be called twice. The
// context bounds only the orderly part. If something is left, Destroy fails and names it.
func (k *Kubelet) Destroy(ctx context.Context) error {
	polite, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	if _, alive := k.PID(); alive {
		k.Thaw()
		if k.Kubeconfig == "" { // the API server would bring its pods back
			k.removePods(polite) // Clean removes what is left
		}
		k.Terminate(polite)
	}
	runtimes.RemovePods(polite, k.Endpoint, func(name string) bool {
		return k.Kubeconfig != "" || strings.HasSuffix(name, "-"+k.NodeName)
	})
	return host.Clean(k.Dir)
}

// removePods removes all manifests and waits until the pods have ended.
func (k *Kubelet) removePods(ctx context.Context) error {
	all, err := filepath.Glob(k.manifest("*"))
	for _, file := range all {
		err = errors.Join(err, os.Remove(file))
	}
	if err != nil {
		return err
	}
	return host.Poll(ctx, "pods to end", func() bool { return len(host.CgroupPIDs(k.cgroup())) == 0 })
}

// Complaints returns the last n warnings and errors of the log, for error messages.
func (k *Kubelet) Complaints(n int) string {
	data, err := os.ReadFile(k.LogFile())
	if err != nil {
		return err.Error()
	}
	var all strings.Builder
	for line := range strings.Lines(string(data)) {
		if !strings.HasPrefix(line, "I") {
			all.WriteString(line)
		}
	}
	return fmt.Sprintf("(end of %s, information left out:)\n%s", k.LogFile(), host.LastLines(all.String(), n))
}
