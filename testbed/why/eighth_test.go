package why_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// This is the eighth set of nodes. Whoever wrote it had read no rule of why, and none of its answers. Its pods have the names
// of spices and herbs, so that no pattern matches a name.

// eighthSet is the eighth set of nodes.
var eighthSet = set{
	name: "eighth", situations: (*patient).makeEighthSituations,
	first: func() []*corev1.Pod {
		checked := slowlyProbed(pod("sage", "sleep"), "0s", 10)
		checked.Spec.Containers[0].ReadinessProbe.PeriodSeconds = 5
		return []*corev1.Pod{pod("idle", "sleep"), onSecond(pod("aged", "sleep"), "testbed/app:1"), checked, withScratch(pod("lovage", "sleep"))}
	},
}

// Two nodes, with 5 and 30 pods, as in TestWhyOnASecondSetOfNodes. It takes ten minutes with the start of the nodes: use
// -timeout 20m, and CRIPROXY_TESTBED_RACE=off. -record and -acts do the same as there. The primary must use overlayfs.
func TestWhyOnAnEighthSetOfNodes(t *testing.T) { examine(t, eighthSet) }

const (
	// addressesOut is false of each network here: it has addresses, and its plugins are installed.
	addressesOut = `no (more |free )?(ip )?address|address(es)? (is |are )?(left|free|available)|plugin (binary |program )?(is missing|is not installed|is not there)|` +
		`not ready|refused|killed`
	// programAbsent is false of each program here: it is there, and kubelet names the right one.
	programAbsent = `entry ?point|(program|command|executable|binary) (is missing|is not|was not|does not|did not|is lacking)`
)

// makeEighthSituations returns what happens on a node: first what fails when a pod starts, several at a time; then what is wrong
// with pods that run, and with their volumes; at last what happens to several pods at once.
//
// A runtime's own error may stand in any answer, as in the fourth set: see makeFourthSituations. Faults are repaired as in the
// fifth.
func (p *patient) makeEighthSituations() []*situation {
	runcDir := filepath.Join(p.dir, "runc.d") // a file of it is for one pod, as in the sixth set
	require.NoError(p.t, os.MkdirAll(runcDir, 0o755))
	require.NoError(p.t, writes(p.broken(), fmt.Sprintf("for each in %s/*; do [ -e \"$each\" ] && . \"$each\"; done\n", runcDir))())
	p.pushLayered("testbed/jar:1", "jar")

	attached := pod("basil", "sleep")
	attached.Annotations["k8s.v1.cni.cncf.io/networks"] = "storage-net"
	shaped := onSecond(pod("clove", "sleep"), "testbed/app:1")
	shaped.Annotations["kubernetes.io/egress-bandwidth"] = "10" // bits a second: an M is missing
	releases := p.t.TempDir()
	require.NoError(p.t, os.Symlink("current", filepath.Join(releases, "current")))
	var looped, locked, checked, passing []*corev1.Pod
	for i := range 3 {
		looped = append(looped, withHostPath(onSecond(pod(fmt.Sprintf("dill-%d", i), "sleep"), "testbed/app:1"), filepath.Join(releases, "current"), corev1.HostPathUnset))
		locked = append(locked, pod(fmt.Sprintf("thyme-%d", i), "sleep"))
		one := slowlyProbed(pod(fmt.Sprintf("paprika-%d", i), "sleep"), "0s", 10)
		one.Spec.Containers[0].ReadinessProbe.PeriodSeconds = 1
		checked = append(checked, one)
	}
	for i := range 8 {
		passing = append(passing, pod(fmt.Sprintf("oregano-%d", i), "sleep"))
	}
	unshared := withHostPath(pod("fennel", "sleep"), p.mountOfUser(1000), corev1.HostPathUnset)
	modern := onSecond(pod("ginger", "sleep"), "testbed/app:1")
	modern.Spec.Volumes = []corev1.Volume{{Name: "model", VolumeSource: corev1.VolumeSource{
		Image: &corev1.ImageVolumeSource{Reference: old + "/" + registry + "/testbed/other:1", PullPolicy: corev1.PullIfNotPresent},
	}}}
	modern.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "model", MountPath: "/model"}}
	always := corev1.ContainerRestartPolicyAlways
	ranked := pod("nutmeg", "sleep")
	ranked.Spec.InitContainers = []corev1.Container{{
		Name: "agent", Image: image, ImagePullPolicy: corev1.PullIfNotPresent, Args: []string{"sleep"}, RestartPolicy: &always,
	}}
	invalid := withHostPath(pod("parsley", "sleep"), p.t.TempDir(), corev1.HostPathUnset)
	bidirectional := corev1.MountPropagationBidirectional // only a privileged container may have it
	invalid.Spec.Containers[0].VolumeMounts[0].MountPropagation = &bidirectional
	prepares := pod("pepper", "sleep")
	prepares.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: runs("app", "sleep", "20s").Exec}}
	job := pod("rosemary", "wait", "12s", "then", "exit", "0")
	job.Spec.RestartPolicy = corev1.RestartPolicyNever
	job.Spec.InitContainers = []corev1.Container{{
		Name: "helper", Image: image, ImagePullPolicy: corev1.PullIfNotPresent, Args: []string{"sleep"}, RestartPolicy: &always,
	}}
	labelled, unlabelled := pod("savory", "sleep"), pod("sesame", "sleep")
	for _, one := range []*corev1.Pod{labelled, unlabelled} {
		one.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{SELinuxOptions: &corev1.SELinuxOptions{Type: "orders_t", Level: "s0:c123,c456"}}
	}
	orders := p.t.TempDir()
	damaged := withHostPath(pod("cumin", "sleep"), orders, corev1.HostPathUnset)
	kept := filepath.Join(p.t.TempDir(), "kept")
	require.NoError(p.t, os.Mkdir(kept, 0o755))
	emptied := withHostPath(pod("sorrel", "sleep"), kept, corev1.HostPathUnset)
	talks := pod("sumac", "sleep")
	talks.Spec.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: runs("app", "log", "6000"), PeriodSeconds: 5, TimeoutSeconds: 10}
	atHome := pod("tarragon", "sleep")
	atHome.Spec.HostNetwork, atHome.Spec.HostPID, atHome.Spec.HostIPC = true, true, true

	otherAddress, noDefinition := filepath.Join(p.cni, "ADD-anise"), filepath.Join(p.cni, "ADD-basil")
	stale := filepath.Join(runcDir, "sage")
	var layer string     // the folder of the layer that only saffron has
	var stuck *os.File   // the file in the volume of lovage that nobody may remove
	p.t.Cleanup(func() { // both fail if that was done
		_ = os.Rename(layer+".aside", layer)
		_ = setFlagsOf(stuck, 0)
	})

	return []*situation{
		// What fails when a pod starts.
		{
			name: "bridge-has-another-address", pod: "anise", runtime: primary, at: seconds(4), claims: "network", // of the network before
			says:   `already has|different|bridge|plugin|\bcni\b|network`,
			denies: addressesOut + `|used up|exhaust`,
			acts: []act{
				{0, both(p.pluginFails("anise", `failed to set bridge addr: "cni0" already has an IP address different from 10.244.3.1/24`), p.adds(pod("anise", "sleep")))},
				{seconds(55), removes(otherAddress)}, {seconds(96), p.ends("anise")},
			},
			asks: []ask{{seconds(30), lasts}, {seconds(50), lasts}, {seconds(91), over}, {seconds(127), over}},
		},
		{
			name: "second-network-not-defined", pod: "basil", runtime: primary, at: seconds(6), claims: "network", // as multus says it
			says:   `storage-net|attachment|multus|not found|plugin|\bcni\b|network`,
			denies: addressesOut + "|" + imageAbsent,
			acts: []act{
				{0, both(p.pluginFails("basil", "error loading k8s delegates k8s args: TryLoadPodDelegates: error in getting k8s network for pod: GetNetworkDelegates: "+
					"failed getting the delegate: getKubernetesDelegate: cannot find a network-attachment-definition (storage-net) in namespace (testbed): "+
					`network-attachment-definitions.k8s.cni.cncf.io "storage-net" not found`), p.adds(attached))},
				{seconds(95), both(removes(noDefinition), p.ends("basil"))},
			},
			asks: []ask{{seconds(33), lasts}, {seconds(83), lasts}, {seconds(129), over}},
		},
		{
			name: "bandwidth-lacks-its-unit", pod: "clove", runtime: old, at: seconds(8), claims: "network",
			says:   `bandwidth|unreasonabl|kbit|too (small|low)|annotation|network`,
			denies: addressesOut + `|plugin (fail|is|was)|\bcpu\b|` + outOfMemory,
			acts:   []act{{0, p.adds(shaped)}, {seconds(95), p.ends("clove")}},
			asks:   []ask{{seconds(36), lasts}, {seconds(84), lasts}, {seconds(132), over}},
		},
		{
			name: "volume-links-to-itself", pod: "dill-", runtime: old, at: seconds(10), claims: "file memory", // three pods, one link
			says:   `symbolic|symlink|\blinks?\b|levels|ELOOP|volume|\bmount|host ?path|\bstat\b`,
			denies: `no such file|not a directory|(path|volume|folder|directory) (does not|doesn't) exist|permission|` + programAbsent + "|" + outOfMemory,
			acts:   []act{{0, p.adds(looped...)}, {seconds(95), p.ends("dill-0", "dill-1", "dill-2")}},
			asks:   []ask{{seconds(39), lasts}, {seconds(85), lasts}, {seconds(135), over}},
		},
		{
			name: "volume-of-another-user", pod: "fennel", runtime: primary, at: seconds(12), claims: "file memory", // FUSE, without allow_other
			says:   `permission|denied|EACCES|fuse|volume|\bmount|host ?path|\bstat\b`,
			denies: `executable|no such file|apparmor|selinux|unauthori[sz]ed|pull secret|` + programAbsent + "|" + outOfMemory,
			acts:   []act{{0, p.adds(unshared)}, {seconds(95), p.ends("fennel")}},
			asks:   []ask{{seconds(42), lasts}, {seconds(86), lasts}, {seconds(138), over}},
		},
		{
			name: "runtime-knows-no-image-volume", pod: "ginger", runtime: old, at: seconds(14), claims: "file", // it takes it for a path that is empty
			says:   `volume|\bmount|mkdir|host ?path|no such file|empty (path|folder|director)|(not|un)[- ]?support|too old`,
			denies: imageAbsent + `|unauthori[sz]ed|pull secret|permission|` + programAbsent + "|" + outOfMemory,
			acts:   []act{{0, p.adds(modern)}, {seconds(95), p.ends("ginger")}},
			asks:   []ask{{seconds(45), lasts}, {seconds(87), lasts}, {seconds(141), over}},
		},
		{
			name: "too-many-keys", pod: "mace", runtime: primary, at: seconds(16), claims: "disk file memory", // its error is that of a quota on a disk
			says:   `\bkey|quota`,
			denies: `no space|(disk|file ?system|partition|device|store|volume) (is|was) full|disk (space|usage)|quota (of|on) (the |a |its )?(disk|volume|file)|inode|selinux|` + programAbsent + "|" + outOfMemory,
			acts: []act{
				{0, both(p.runcFails(runcDir, "mace", "runc create failed: unable to start container process: error during container init: "+
					"unable to join session keyring: unable to create session key: disk quota exceeded"), p.adds(pod("mace", "sleep")))},
				{seconds(95), p.ends("mace")},
			},
			asks: []ask{{seconds(47), lasts}, {seconds(88), lasts}, {seconds(143), over}},
		},
		{
			name: "limit-cannot-be-raised", pod: "nutmeg", runtime: primary, at: seconds(18), claims: "file memory", // of its sidecar's open files
			says:   `rlimit|ulimit|open files|NOFILE|\blimits?\b|operation not permitted|EPERM`,
			denies: `too many open files|\bcpu\b|apparmor|selinux|seccomp|` + programAbsent + "|" + outOfMemory,
			acts: []act{
				{0, both(p.runcFails(runcDir, "nutmeg", "runc create failed: unable to start container process: error during container init: "+
					"error setting rlimits for ready process: error setting rlimit type 7: operation not permitted"), p.adds(ranked))},
				{seconds(95), p.ends("nutmeg")},
			},
			asks: []ask{{seconds(49), lasts}, {seconds(89), lasts}, {seconds(145), over}},
		},
		{
			name: "manifest-is-invalid", twin: true, pod: "parsley", at: seconds(20), // kubelet refuses it, and asks no runtime
			says: `no (such )?pod|unknown|propagat|privileged|valid|` + notAsked,
			acts: []act{{0, p.adds(invalid)}, {seconds(95), p.ends("parsley")}},
			asks: []ask{{seconds(51), either}, {seconds(90), either}},
		},
		{
			name: "post-start-takes-its-time", twin: true, pod: "pepper", runtime: primary, at: seconds(22), claims: "slow",
			says:   `post-?start|\bhooks?\b|exec|under way`,
			denies: `hang|hung|fail|tim(e|ed)[ -]?out|frozen`,
			acts:   []act{{0, p.adds(prepares)}, {seconds(95), p.ends("pepper")}},
			asks:   []ask{{seconds(16), either}, {seconds(60), either}},
		},
		{
			name: "job-with-sidecar-is-done", twin: true, pod: "rosemary", runtime: primary, at: seconds(24), // kubelet stops the sidecar then
			acts: []act{{0, p.adds(job)}, {seconds(95), p.ends("rosemary")}},
			asks: []ask{{seconds(52), either}, {seconds(91), either}, {seconds(147), either}},
		},

		// What is wrong with pods that run, and with their volumes.
		{
			name: "layer-is-swept-away", pod: "saffron", runtime: primary, at: seconds(160), claims: "file memory", // by who frees space
			says: `layer|snapshot|overlay|root ?fs|lower|\bmount|no such file|` +
				`image\b.*(damag|incomplete|broken|missing|lacks|part)`,
			denies: `(volume|host ?path) (is|was|does)|no space|unauthori[sz]ed|pull secret|permission|\bcni\b|` + imageAbsent + "|" + programAbsent + "|" + outOfMemory,
			acts: []act{
				{seconds(-42), p.adds(withImage(pod("saffron", "sleep"), registry+"/testbed/jar:1"))},
				{0, func() error { // its program ends, and kubelet starts it again
					id, pid, err := p.process("saffron")
					if err != nil {
						return err
					}
					if layer, err = p.topLayer(id); err != nil {
						return err
					}
					return errors.Join(os.Rename(layer, layer+".aside"), unix.Kill(pid, unix.SIGTERM))
				}},
				{seconds(92), func() error {
					return both(func() error { return os.Rename(layer+".aside", layer) }, p.ends("saffron"))()
				}},
			},
			asks: []ask{{seconds(36), lasts}, {seconds(82), lasts}, {seconds(128), over}},
		},
		{
			name: "exec-finds-no-cgroup", pod: "sage", runtime: primary, at: seconds(163), claims: "probe file memory", // somebody has removed it
			says:   `cgroup|no such file|(exec|probe)\w*\b.*(fail|error|\bnot\b)`,
			denies: `tim(e|ed)[ -]?out|longer than|shim (is|was|did|died|does)|paus(ed|ing)|` + programAbsent + "|" + outOfMemory,
			acts: []act{
				{0, func() error {
					id, _, err := p.process("sage")
					if err != nil {
						return err
					}
					return p.execFails(stale, id, "exec failed: unable to start container process: error adding pid 31337 to cgroups: failed to write 31337: "+
						"open /sys/fs/cgroup/pids/kubepods/besteffort/pod6c1f0a1e-51f3-4a0e-9d3b-1b7d3c0a9f52/sage/cgroup.procs: no such file or directory")
				}},
				{seconds(64), removes(stale)}, {seconds(102), p.ends("sage")},
			},
			asks: []ask{{seconds(28), lasts}, {seconds(58), lasts}, {seconds(96), over}, {seconds(134), over}},
		},
		{
			name: "selinux-type-unknown", pod: "savory", runtime: primary, at: seconds(166), claims: "file memory", // its policy is not installed
			says:   `selinux|keycreate|\battr\b|label|security|invalid argument`,
			denies: `apparmor|seccomp|sysctl|quota|\bcni\b|` + programAbsent + "|" + outOfMemory,
			acts: []act{
				{0, both(p.runcFails(runcDir, "savory", "runc create failed: unable to start container process: error during container init: "+
					"write /proc/thread-self/attr/keycreate: invalid argument"), p.adds(labelled))},
				{seconds(95), p.ends("savory")},
			},
			asks: []ask{{seconds(34), lasts}, {seconds(84), lasts}, {seconds(130), over}},
		},
		{
			name: "file-system-needs-repair", pod: "cumin", runtime: primary, at: seconds(169), claims: "disk file memory", // of its volume
			says: `structure needs|clean|EUCLEAN|corrupt|damag|fsck|repair|file ?system|volume|\bmount|\bdisk|host ?path`,
			denies: `no space|\bfull\b|read-?only|inode|not a directory|no such file|permission|(disk|file ?system|root) of (primary|containerd)|` +
				programAbsent + "|" + outOfMemory,
			acts: []act{
				{0, both(p.runcFails(runcDir, "cumin", fmt.Sprintf("runc create failed: unable to start container process: error during container init: "+
					"error mounting %q to rootfs at \"/data\": stat %s: structure needs cleaning", orders, orders)), p.adds(damaged))},
				{seconds(95), p.ends("cumin")},
			},
			asks: []ask{{seconds(37), lasts}, {seconds(85), lasts}, {seconds(133), over}},
		},
		{
			name: "selinux-is-off", twin: true, pod: "sesame", runtime: primary, at: seconds(172), // its program runs without a label
			acts: []act{{0, p.adds(unlabelled)}, {seconds(90), p.ends("sesame")}},
			asks: []ask{{seconds(40), either}, {seconds(86), either}},
		},
		{
			name: "folder-of-volume-removed", twin: true, pod: "sorrel", runtime: primary, at: seconds(175), // the runtime makes it again
			says:   `exit|restart|crash|again|ended`,
			denies: `fail|mount|volume`,
			acts: []act{
				{seconds(-45), p.adds(emptied)},
				{0, func() error {
					_, pid, err := p.process("sorrel")
					if err != nil {
						return err
					}
					return errors.Join(os.RemoveAll(kept), unix.Kill(pid, unix.SIGTERM))
				}},
				{seconds(90), p.ends("sorrel")},
			},
			asks: []ask{{seconds(42), either}, {seconds(87), either}},
		},
		{
			name: "volume-cannot-be-emptied", twin: true, pod: "lovage", runtime: primary, at: seconds(178), // kubelet's work, and no runtime's
			says: `volume|empty-?dir|` + notAsked,
			acts: []act{
				{0, func() (err error) {
					if stuck, err = p.fileInScratch("lovage"); err != nil {
						return err
					}
					return both(func() error { return setFlagsOf(stuck, immutableFlag) }, p.ends("lovage"))()
				}},
				{seconds(100), func() error { return setFlagsOf(stuck, 0) }},
			},
			asks: []ask{{seconds(44), either}, {seconds(92), either}},
		},
		{
			name: "probe-prints-much", twin: true, pod: "sumac", runtime: primary, at: seconds(181), // and says that all is well
			acts: []act{{0, p.adds(talks)}, {seconds(88), p.ends("sumac")}},
			asks: []ask{{seconds(46), either}, {seconds(82), either}},
		},
		{
			name: "lives-in-the-namespaces-of-the-host", twin: true, pod: "tarragon", runtime: primary, at: seconds(184),
			acts: []act{{0, p.adds(atHome)}, {seconds(88), p.ends("tarragon")}},
			asks: []ask{{seconds(48), either}, {seconds(84), either}, {seconds(120), either}},
		},

		// What happens to several pods at once.
		{
			name: "firewall-is-locked", pod: "thyme-", runtime: primary, at: seconds(318), claims: "network", // by who writes it for minutes
			says:   `xtables|iptables|\block|firewall|plugin|\bcni\b|network`,
			denies: addressesOut + `|file lock|database`,
			acts: []act{
				{0, func() error {
					for _, one := range locked {
						if err := p.pluginFails(one.Name, "failed to list chains: running [/usr/sbin/iptables -t nat -S --wait 5]: exit status 4: "+
							"Another app is currently holding the xtables lock. Perhaps you want to use the -w option?")(); err != nil {
							return err
						}
					}
					return p.adds(locked...)()
				}},
				{seconds(58), func() (err error) {
					for _, one := range locked {
						err = errors.Join(err, os.Remove(filepath.Join(p.cni, "ADD-"+one.Name)))
					}
					return err
				}},
				{seconds(100), p.ends("thyme-0", "thyme-1", "thyme-2")},
			},
			asks: []ask{{seconds(30), lasts}, {seconds(53), lasts}, {seconds(95), over}, {seconds(132), over}},
		},
		{
			name: "processors-not-there", pod: "turmeric", runtime: primary, at: seconds(321), claims: "file memory", // it is pinned to them
			says:   `cpu|processor|\brange\b|cgroup`,
			denies: `quota|throttl|\bdisk|permission|(address|port) range|` + programAbsent + "|" + outOfMemory,
			acts: []act{
				{0, both(p.runcFails(runcDir, "turmeric", "runc create failed: unable to start container process: unable to apply cgroup configuration: "+
					"failed to write 64-67: write /sys/fs/cgroup/cpuset/kubepods/pod6c1f0a1e-51f3-4a0e-9d3b-1b7d3c0a9f52/turmeric/cpuset.cpus: numerical result out of range"),
					p.adds(pod("turmeric", "sleep")))},
				{seconds(95), p.ends("turmeric")},
			},
			asks: []ask{{seconds(33), lasts}, {seconds(83), lasts}, {seconds(129), over}},
		},
		{
			name: "many-probes", twin: true, pod: "paprika-", runtime: primary, at: seconds(324), claims: "slow probe", // a node that is busy
			says:   `slow|\b(took|takes)\b|busy`,
			denies: `hang|hung|fail|tim(e|ed)[ -]?out|frozen|gone`,
			acts:   []act{{0, p.adds(checked...)}, {seconds(60), p.ends("paprika-0", "paprika-1", "paprika-2")}},
			asks:   []ask{{seconds(25), either}, {seconds(56), either}},
		},
		{
			name: "pods-come-and-go", twin: true, pod: "oregano-", runtime: primary, at: seconds(327), // as where tests are run
			says:   `cancel|delet|slow|\b(took|takes)\b|busy`,
			claims: "slow",
			denies: `hang|hung|fail|frozen|gone`,
			acts: []act{
				{0, p.adds(passing[:2]...)},
				{seconds(18), both(p.ends("oregano-0", "oregano-1"), p.adds(passing[2:4]...))},
				{seconds(36), both(p.ends("oregano-2", "oregano-3"), p.adds(passing[4:6]...))},
				{seconds(54), both(p.ends("oregano-4", "oregano-5"), p.adds(passing[6:]...))},
				{seconds(72), p.ends("oregano-6", "oregano-7")},
			},
			asks: []ask{{seconds(28), either}, {seconds(68), either}, {seconds(100), either}},
		},
	}
}

// pluginFails returns the act after which the CNI plugin fails with a message when it adds a pod.
func (p *patient) pluginFails(pod, message string) func() error {
	text, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "code": 999, "msg": message})
	require.NoError(p.t, err)
	require.NotContains(p.t, string(text), "'")
	return writes(filepath.Join(p.cni, "ADD-"+pod), fmt.Sprintf("printf %%s '%s'; exit 1\n", text))
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

// setFlagsOf sets the flags of an open file, as chattr does. Its name may have changed since.
func setFlagsOf(f *os.File, flags int) error {
	if f == nil {
		return errors.New("there is no file")
	}
	return unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags)
}

// mountOfUser returns a folder on which a FUSE file system is mounted that only one user may see, not even root. Its server
// answers nothing, as the kernel denies what others ask.
func (p *patient) mountOfUser(uid int) string {
	dir := p.t.TempDir()
	server, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	require.NoError(p.t, err)
	require.NoError(p.t, unix.Mount("share", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d", server.Fd(), uid, uid)))
	p.t.Cleanup(func() {
		_ = unix.Unmount(dir, unix.MNT_DETACH)
		_ = server.Close()
	})
	return dir
}

// pushLayered puts an image into the registry that is testbed/app:1 with a layer that no other image has.
func (p *patient) pushLayered(image, name string) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	text := []byte("this is the only layer with this file\n")
	require.NoError(p.t, w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))}))
	_, err := w.Write(text)
	require.NoError(p.t, err)
	require.NoError(p.t, w.Close())
	made, err := mutate.AppendLayers(p.pushed("testbed/app:1"), static.NewLayer(archive.Bytes(), types.OCIUncompressedLayer))
	require.NoError(p.t, err)
	require.NoError(p.t, p.registry.Push(image, made))
}

// topLayer returns the folder with the last layer of the image of a container on the primary.
func (p *patient) topLayer(container string) (string, error) {
	mounts, err := p.ctr(p.runtime, "snapshots", "--snapshotter", p.runtime.Snapshotter, "mounts", "/nowhere", container)
	if err != nil {
		return "", err
	}
	lower := regexp.MustCompile(`lowerdir=([^:,\s]+):`).FindStringSubmatch(mounts) // there are others below
	if lower == nil {
		return "", fmt.Errorf("no layers of %s in %q", container, mounts)
	}
	_, err = os.Stat(filepath.Join(lower[1], "jar"))
	return lower[1], err
}
