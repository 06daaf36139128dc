package why_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// This is the sixth set of nodes. Whoever wrote it had read no rule of why, and none of its answers. Its pods have the names
// of rivers, so that no pattern matches a name.

// sixthSet is the sixth set of nodes.
var sixthSet = set{
	name: "sixth", situations: (*patient).makeSixthSituations,
	first: func() []*corev1.Pod {
		leaving := graceful(pod("ural", "sleep"), 60)
		leaving.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 25}}}
		return []*corev1.Pod{pod("idle", "sleep"), onSecond(pod("aged", "sleep"), "testbed/app:1"), pod("kama", "sleep"), leaving}
	},
}

// Two nodes, with 5 and 30 pods, as in TestWhyOnASecondSetOfNodes. It takes ten minutes with the start of the nodes: use
// -timeout 20m, and CRIPROXY_TESTBED_RACE=off. -record and -acts do the same as there. The cgroups must be of version 1.
func TestWhyOnASixthSetOfNodes(t *testing.T) { examine(t, sixthSet) }

// notAsked is what may be said of a pod for which kubelet asks no runtime.
const notAsked = `no (container|sandbox|calls?)|(not|never) (been )?(asked|created|started)|kubelet (has|did|does|had)`

// makeSixthSituations returns what happens on a node: first what fails when a pod starts, several at a time; then what is wrong
// with pods that run, when they start again or end; at last what happens to the networks of both runtimes.
//
// A runtime's own error may stand in any answer, as in the fourth set: see makeFourthSituations. Faults are repaired as in the
// fifth.
func (p *patient) makeSixthSituations() []*situation {
	runcDir := filepath.Join(p.dir, "runc.d") // a file of it is for one pod, so that situations do not overwrite each other's
	require.NoError(p.t, os.Mkdir(runcDir, 0o755))
	require.NoError(p.t, writes(p.broken(), fmt.Sprintf("for each in %s/*; do [ -e \"$each\" ] && . \"$each\"; done\n", runcDir))())
	well := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: p.registry.Addr})
	p.badRegistry(p.runtime, "faraway.test", func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(5 * time.Second)
		well.ServeHTTP(w, r)
	})

	nested := withHostPath(pod("ganges", "sleep"), p.t.TempDir(), corev1.HostPathUnset)
	nested.Spec.Containers[0].VolumeMounts[0].ReadOnly = true
	nested.Spec.Volumes = append(nested.Spec.Volumes, corev1.Volume{
		Name: "inner", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: p.t.TempDir()}},
	})
	nested.Spec.Containers[0].VolumeMounts = append(nested.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "inner", MountPath: "/data/inner"})
	abandoned := withHostPath(onSecond(pod("niger", "sleep"), "testbed/app:1"), p.deadMount(), corev1.HostPathUnset)
	inProc := withHostPath(pod("indus", "sleep"), p.t.TempDir(), corev1.HostPathUnset)
	inProc.Spec.Containers[0].VolumeMounts[0].MountPath = "/proc/driver"
	notExecutable := onSecond(pod("ebro", "sleep"), "testbed/app:1")
	notExecutable.Spec.InitContainers = []corev1.Container{{
		Name: "prepare", Image: notExecutable.Spec.Containers[0].Image, ImagePullPolicy: corev1.PullIfNotPresent,
		Command: []string{"/etc/image"}, // a file of the image, and no program
	}}
	outside := p.t.TempDir()
	require.NoError(p.t, os.Symlink("/etc", filepath.Join(outside, "escape")))
	escapes := withHostPath(pod("volga", "sleep"), outside, corev1.HostPathUnset)
	escapes.Spec.Containers[0].VolumeMounts[0].SubPath = "escape"
	samePort := []*corev1.Pod{pod("tagus-0", "sleep"), pod("tagus-1", "sleep")}
	for _, one := range samePort {
		one.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 8080, HostPort: 39217}}
	}
	profile := "node-default"
	confined := pod("elbe", "sleep")
	confined.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{
		AppArmorProfile: &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost, LocalhostProfile: &profile},
	}
	slowStarter := pod("lena", "wait", "40s", "then", "write", "/started", "yes", "then", "sleep")
	slowStarter.Spec.Containers[0].StartupProbe = &corev1.Probe{
		ProbeHandler: runs("app", "file", "/started"), PeriodSeconds: 5, FailureThreshold: 30, TimeoutSeconds: 10,
	}
	releases := p.t.TempDir()
	current := filepath.Join(releases, "current")
	require.NoError(p.t, os.Mkdir(current, 0o755))
	deployed := withHostPath(slowlyProbed(pod("tiber", "sleep"), "0s", 10), releases, corev1.HostPathUnset)
	deployed.Spec.Containers[0].WorkingDir = "/data/current"
	deployed.Spec.Containers[0].ReadinessProbe.PeriodSeconds = 5
	capable := pod("vistula", "sleep")
	capable.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"NET_ADMNI"}}}
	var drained, queued []*corev1.Pod
	var drainedNames []string
	for i := range 4 {
		one := graceful(pod(fmt.Sprintf("sava-%d", i), "sleep"), 60)
		one.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: runs("app", "sleep", "8s").Exec}}
		drained, drainedNames = append(drained, one), append(drainedNames, one.Name)
	}
	for i := range 2 {
		queued = append(queued, withImage(pod(fmt.Sprintf("orinoco-%d", i), "sleep"), fmt.Sprintf("faraway.test/testbed/app:%d", i+1)))
	}

	chatters, noAddress := filepath.Join(p.cni, "ADD-rhone"), filepath.Join(p.cni, "ADD-loire")
	plugin := filepath.Join(p.cni, "bridge")
	pluginText, err := os.ReadFile(plugin)
	require.NoError(p.t, err)
	network := networkOf(p.second)
	networkText, err := os.ReadFile(network)
	require.NoError(p.t, err)
	unknownVersion := strings.Replace(string(networkText), `"cniVersion": "1.0.0"`, `"cniVersion": "0.9.0"`, 1)
	require.NotEqual(p.t, string(networkText), unknownVersion)

	var quota, logs, leftover string // what an act has changed, for the act that repairs it

	return []*situation{
		// What fails when a pod starts.
		{
			name: "volume-within-read-only-volume", pod: "ganges", runtime: primary, at: seconds(4), claims: "file memory",
			says:   `read-?only|mount|volume|EROFS`,
			denies: `\b(disk|drive)s?\b|(primary|containerd)('s)? (file ?system|root) (is|was|has|turned)|` + programMissing + "|" + outOfMemory,
			acts:   []act{{0, p.adds(nested)}, {seconds(95), p.ends("ganges")}},
			asks:   []ask{{seconds(30), lasts}, {seconds(82), lasts}, {seconds(126), over}},
		},
		{
			name: "volume-server-died", pod: "niger", runtime: old, at: seconds(6), claims: "file network memory", // of a FUSE file system
			says:   `endpoint|not connected|ENOTCONN|fuse|mount|volume|host ?path|\bstat\b`,
			denies: `\bcni\b|old\.io (is|was|has been) (gone|away|down|unavailable|refused|restarted)|` + programMissing + "|" + outOfMemory,
			acts:   []act{{0, p.adds(abandoned)}, {seconds(95), p.ends("niger")}},
			asks:   []ask{{seconds(33), lasts}, {seconds(83), lasts}, {seconds(129), over}},
		},
		{
			name: "volume-within-proc", pod: "indus", runtime: primary, at: seconds(8), claims: "file memory",
			says:   `/proc\b|mount|volume`,
			denies: programMissing + "|" + outOfMemory,
			acts:   []act{{0, p.adds(inProc)}, {seconds(95), p.ends("indus")}},
			asks:   []ask{{seconds(36), lasts}, {seconds(84), lasts}, {seconds(132), over}},
		},
		{
			name: "init-program-not-executable", pod: "ebro", runtime: old, at: seconds(10), claims: "file memory",
			says: `permission|denied|EACCES|executable|\bmode\b|/etc/image|\+x`,
			denies: `no such file|not found|(program|command|file|executable|binary|image) (does not exist|doesn't exist|is missing from)|` +
				`unauthori[sz]ed|` + outOfMemory,
			acts: []act{{0, p.adds(notExecutable)}, {seconds(95), p.ends("ebro")}},
			asks: []ask{{seconds(39), lasts}, {seconds(85), lasts}, {seconds(135), over}},
		},
		{
			name: "plugin-prints-more-than-json", pod: "rhone", runtime: primary, at: seconds(12), claims: "network",
			says:   `invalid character|json|decod|pars|unmarshal|output|result|plugin|\bcni\b|network`,
			denies: `no (more |free )?(ip )?address|plugin (binary |program )?(is missing|is not installed|is not there)|not ready|refused|killed`,
			acts: []act{
				{0, both(writes(chatters, "echo 'Lease renewed.'\n"), p.adds(pod("rhone", "sleep")))},
				{seconds(55), removes(chatters)}, {seconds(96), p.ends("rhone")},
			},
			asks: []ask{{seconds(42), lasts}, {seconds(91), over}, {seconds(138), over}},
		},
		{
			name: "plugin-gives-no-address", pod: "loire", runtime: primary, at: seconds(14), claims: "network", // and says that all is well
			says: `network|address|plugin|\bcni\b|\bip\b`,
			denies: `exhaust|used up|all (are )?used|(more|free) (ip )?address|address(es)? (is |are )?(left|free|available)|` +
				`not installed|not ready|refused|killed`,
			acts: []act{
				{0, both(writes(noAddress, `printf %s '{"cniVersion":"1.0.0","interfaces":[],"ips":[],"dns":{}}'; exit 0`+"\n"), p.adds(pod("loire", "sleep")))},
				{seconds(95), both(removes(noAddress), p.ends("loire"))},
			},
			asks: []ask{{seconds(45), lasts}, {seconds(86), lasts}, {seconds(141), over}},
		},
		{
			name: "graphics-driver-not-loaded", pod: "amur", runtime: primary, at: seconds(16), claims: "file memory", // nvidia's hook says so
			says:   `nvidia|nvml|driver|\bhook|\bgpu\b|device`,
			denies: `post-?start|pre-?stop|\bcni\b|` + programMissing + "|" + outOfMemory,
			acts: []act{
				{0, both(p.runcFails(runcDir, "amur", "runc create failed: unable to start container process: error during container init: "+
					"error running prestart hook #0: exit status 1, stdout: , stderr: Auto-detected mode as legacy\n"+
					"nvidia-container-cli: initialization error: nvml error: driver not loaded"),
					p.adds(pod("amur", "sleep")))},
				{seconds(95), p.ends("amur")},
			},
			asks: []ask{{seconds(48), lasts}, {seconds(87), lasts}, {seconds(144), over}},
		},
		{
			name: "host-port-taken", twin: true, pod: "tagus-", runtime: primary, at: seconds(18), // kubelet refuses the later pod
			says:   `\bports?\b|` + notAsked,
			denies: `\bcni\b|portmap`,
			acts:   []act{{seconds(-9), p.adds(samePort[1])}, {0, p.adds(samePort[0])}, {seconds(95), p.ends("tagus-0", "tagus-1")}},
			asks:   []ask{{seconds(47), either}, {seconds(90), either}},
		},
		{
			name: "apparmor-is-off", twin: true, pod: "elbe", runtime: primary, at: seconds(20), // kubelet refuses the pod
			says: `apparmor|` + notAsked,
			acts: []act{{0, p.adds(confined)}, {seconds(95), p.ends("elbe")}},
			asks: []ask{{seconds(49), either}, {seconds(145), either}},
		},
		{
			name: "sub-path-leaves-its-volume", twin: true, pod: "volga", runtime: primary, at: seconds(22), // kubelet asks for no container
			says: `sub-?path|volume|` + notAsked,
			acts: []act{{0, p.adds(escapes)}, {seconds(95), p.ends("volga")}},
			asks: []ask{{seconds(51), either}, {seconds(89), either}, {seconds(147), either}},
		},
		{
			name: "starts-up-slowly", twin: true, pod: "lena", runtime: primary, at: seconds(24), claims: "probe file",
			says:   `probe|start-?up|exit|not (yet )?ready`,
			denies: `restart|crash|tim(e|ed)[ -]?out|` + programMissing,
			acts:   []act{{0, p.adds(slowStarter)}, {seconds(95), p.ends("lena")}},
			asks:   []ask{{seconds(20), either}, {seconds(38), either}, {seconds(70), either}},
		},

		// What is wrong with pods that run, when they start again or end.
		{
			name: "sandbox-cannot-be-removed", pod: "kama", runtime: primary, at: seconds(90), claims: "file", // it has an immutable file
			says: `RemovePodSandbox|operation not permitted|EPERM|immutable|unlink|root directory|` +
				`(remov|delet|clean)\w*\b.*(\bnot\b|fail|error|refus|denied|again|times|still)|(\bnot\b|cannot|unable|fail|error|refus|denied)\w*\b.*(remov|delet|clean)`,
			denies: `no such file|busy|did not (end|stop)|\bcni\b|\bimages? (is|was|can|could)|` + outOfMemory,
			acts: []act{
				{0, func() (err error) {
					leftover, err = p.leaves("kama")
					return errors.Join(err, p.ends("kama")())
				}},
				{seconds(169), func() error { return setFlags(leftover, 0) }},
			},
			asks: []ask{{seconds(130), lasts}, {seconds(164), lasts}, {seconds(240), over}}, // kubelet tries it once a minute
		},
		{
			name: "working-folder-replaced", pod: "tiber", runtime: primary, at: seconds(165), claims: "probe file memory", // by whoever deploys
			says:   `chdir|\bcwd\b|work(ing)? ?(dir|folder)|/data/current|(dir|folder)\w*\b.*(\bnot\b|missing|gone)|no such file`,
			denies: `tim(e|ed)[ -]?out|longer than|shim (is|was|did|died|does)|` + programMissing + "|" + outOfMemory,
			acts: []act{
				{seconds(-40), p.adds(deployed)},
				{0, func() error { return os.Rename(current, current+".aside") }},
				{seconds(64), func() error { return os.Rename(current+".aside", current) }}, {seconds(102), p.ends("tiber")},
			},
			asks: []ask{{seconds(28), lasts}, {seconds(58), lasts}, {seconds(96), over}, {seconds(134), over}},
		},
		{
			name: "no-more-cgroups", pod: "congo", runtime: primary, at: seconds(168), claims: "disk file memory", // its error is that of a full disk
			says:   `cgroup`,
			denies: `\bdisks?\b|(file ?system|partition|volume|device|store) (is|was) full|inode|images|` + programMissing + "|" + outOfMemory,
			acts: []act{
				{0, both(p.runcFails(runcDir, "congo", "runc create failed: unable to start container process: unable to apply cgroup configuration: "+
					"mkdir /sys/fs/cgroup/memory/kubepods/besteffort/pod6c1f0a1e-51f3-4a0e-9d3b-1b7d3c0a9f52/congo: no space left on device"),
					p.adds(pod("congo", "sleep")))},
				{seconds(95), p.ends("congo")},
			},
			asks: []ask{{seconds(34), lasts}, {seconds(84), lasts}, {seconds(130), over}},
		},
		{
			name: "quota-above-that-of-the-pod", pod: "yukon", runtime: primary, at: seconds(171), claims: "file memory", // somebody has lowered the pod's
			says:   `quota|cfs|cgroup|\bcpu\b|invalid argument`,
			denies: `sysctl|` + programMissing + "|" + outOfMemory,
			acts: []act{
				{seconds(-40), p.adds(withCPU(pod("yukon", "sleep"), "500m"))},
				{0, func() error {
					own, pid, err := p.cgroup("cpu", "yukon")
					if err != nil {
						return err
					}
					quota = filepath.Join(filepath.Dir(own), "cpu.cfs_quota_us")
					return errors.Join( // a cgroup may have no lower quota than those within
						os.WriteFile(filepath.Join(own, "cpu.cfs_quota_us"), []byte("20000"), 0o644),
						os.WriteFile(quota, []byte("20000"), 0o644),
						unix.Kill(pid, unix.SIGTERM), // and kubelet starts it again
					)
				}},
				{seconds(80), func() error { return both(writes(quota, "50000"), p.ends("yukon"))() }},
			},
			asks: []ask{{seconds(34), lasts}, {seconds(72), lasts}, {seconds(114), over}},
		},
		{
			name: "devices-not-allowed", pod: "parana", runtime: primary, at: seconds(174), claims: "file memory", // as in a container of LXC
			says:   `device|cgroup|operation not permitted|EPERM|\bc 1:3\b`,
			denies: `apparmor|selinux|\bdisk\b|` + programMissing + "|" + outOfMemory,
			acts: []act{
				{seconds(-41), p.adds(pod("parana", "sleep"))},
				{0, func() error {
					own, pid, err := p.cgroup("devices", "parana")
					if err != nil {
						return err
					}
					denies := filepath.Join(filepath.Dir(own), "devices.deny")
					return errors.Join(os.WriteFile(denies, []byte("c 1:3 rwm"), 0o644), unix.Kill(pid, unix.SIGTERM)) // it is /dev/null
				}},
				{seconds(80), p.ends("parana")},
			},
			asks: []ask{{seconds(36), lasts}, {seconds(73), lasts}, {seconds(116), over}},
		},
		{
			name: "no-space-for-logs", pod: "thames", runtime: primary, at: seconds(177), claims: "disk file memory",
			says:   `no space|\blogs?\b|\bdisk\b|device is full`,
			denies: `disk of (primary|containerd)|containerd's disk|(image|snapshot) (store|disk)|` + programMissing + "|" + outOfMemory,
			acts: []act{
				{seconds(-42), p.adds(pod("thames", "sleep"))},
				{0, func() error {
					_, pid, err := p.process("thames")
					if err == nil {
						logs, err = p.fillsLogs("thames")
					}
					if err != nil {
						return err
					}
					return unix.Kill(pid, unix.SIGTERM)
				}},
				{seconds(80), func() error {
					return both(func() error { return unix.Unmount(logs, unix.MNT_DETACH) }, p.ends("thames"))()
				}},
			},
			asks: []ask{{seconds(38), lasts}, {seconds(74), lasts}, {seconds(118), over}},
		},
		{
			name: "capability-mistyped", twin: true, pod: "vistula", runtime: primary, at: seconds(180), // its program runs without
			acts: []act{{0, p.adds(capable)}, {seconds(85), p.ends("vistula")}},
			asks: []ask{{seconds(20), either}, {seconds(60), either}},
		},
		{
			name: "throttled", twin: true, pod: "drava", runtime: primary, at: seconds(183), claims: "slow", // and so it starts slowly
			says:   `\bcpu\b|throttl|StartContainer`,
			denies: `hang|hung|frozen|fail`,
			acts:   []act{{0, p.adds(withCPU(pod("drava", "sleep"), "20m"))}, {seconds(88), p.ends("drava")}},
			asks:   []ask{{seconds(9), either}, {seconds(40), either}, {seconds(70), either}},
		},
		{
			name: "disk-is-busy", twin: true, pod: "mekong", runtime: primary, at: seconds(186), claims: "slow", // its container is made in time
			says:     `slow|under way|StartContainer|\b(took|takes)\b|waits? for`,
			denies:   `hang|hung|frozen|fail|gone`,
			everyone: `stats\b`, // its shim answers nothing meanwhile
			acts:     []act{{0, both(p.onRunc(runcDir, "mekong", "sleep 14"), p.adds(pod("mekong", "sleep")))}, {seconds(85), p.ends("mekong")}},
			asks:     []ask{{seconds(10), either}, {seconds(45), either}},
		},
		{
			name: "kubelet-sleeps-before-it-stops", twin: true, pod: "ural", runtime: primary, at: seconds(189), // as its spec says
			acts: []act{{0, p.ends("ural")}},
			asks: []ask{{seconds(15), either}, {seconds(60), either}},
		},
		{
			name: "node-is-drained", twin: true, pod: "sava-", runtime: primary, at: seconds(192),
			acts: []act{{seconds(-34), p.adds(drained...)}, {0, p.ends(drainedNames...)}},
			asks: []ask{{seconds(5), either}, {seconds(44), either}},
		},

		// What happens to the networks of both runtimes.
		{
			name: "registry-far-away", twin: true, pod: "orinoco-", runtime: primary, at: seconds(268), claims: "registry slow", // one pull waits for the other
			says:   `\bpull`,
			denies: `hang|hung|frozen|refused|unauthori[sz]ed|fail|registry (is|was) (gone|away|down)|` + imageAbsent,
			acts:   []act{{0, p.adds(queued...)}, {seconds(64), p.ends("orinoco-0", "orinoco-1")}},
			asks:   []ask{{seconds(12), either}, {seconds(40), either}, {seconds(60), either}},
		},
		{
			name: "network-of-unknown-version", pod: "murray", runtime: old, at: seconds(320), claims: "network",
			says:     `version|incompatible|plugin|\bcni\b|network`,
			everyone: `incompatible|plugin|\bcni\b|network`,
			denies:   `plugin (binary |program )?(is missing|is not installed|is not there)|address(es)? (is |are )?left|not ready|refused|killed`,
			acts: []act{
				{0, both(writes(network, unknownVersion), p.addsLater(onSecond(pod("murray", "sleep"), "testbed/app:1")))},
				{seconds(50), writes(network, string(networkText))}, {seconds(86), p.ends("murray")},
			},
			asks: []ask{{seconds(28), lasts}, {seconds(45), lasts}, {seconds(82), over}, {seconds(118), over}},
		},
		{
			name: "plugin-for-other-machines", pod: "seine-", runtime: primary, at: seconds(352), claims: "network file", // several pods, one reason
			says:     `exec format|format error|architecture|plugin|\bcni\b|network`,
			everyone: `exec format|format error|plugin|\bcni\b|network`,
			denies: `entry ?point|\bimages?\b|no (more |free )?(ip )?address|not ready|refused|` +
				`plugin (binary |program )?(is missing|is not installed|is not there)`,
			acts: []act{
				{0, both(replaces(plugin, foreignProgram), p.adds(pod("seine-0", "sleep"), pod("seine-1", "sleep"), pod("seine-2", "sleep")))},
				{seconds(58), replaces(plugin, string(pluginText))}, {seconds(98), p.ends("seine-0", "seine-1", "seine-2")},
			},
			asks: []ask{{seconds(30), lasts}, {seconds(54), lasts}, {seconds(92), over}, {seconds(132), over}},
		},
	}
}

// foreignProgram is the beginning of a program for S/390: no machine here runs it.
const foreignProgram = "\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x16\x00\x01\x00\x00\x00" +
	"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x40\x00\x38\x00\x00\x00\x40\x00\x00\x00\x00\x00"

// replaces returns the act that replaces a program.
func replaces(file, text string) func() error {
	return func() error {
		return errors.Join(os.WriteFile(file+".new", []byte(text), 0o755), os.Rename(file+".new", file))
	}
}

// addsLater returns the act that makes kubelet run pods when a runtime has noticed that its network's file has changed.
func (p *patient) addsLater(pods ...*corev1.Pod) func() error {
	return func() error {
		time.Sleep(2 * time.Second)
		return p.adds(pods...)()
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

// withCPU returns a pod whose first container may use so much of a CPU.
func withCPU(p *corev1.Pod, cpu string) *corev1.Pod {
	p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	return p
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

// immutableFlag is that of a file that nobody may change or remove: FS_IMMUTABLE_FL.
const immutableFlag = 0x10

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

// setFlags sets the flags of a file, as chattr does.
func setFlags(file string, flags int) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	return setFlagsOf(f, flags)
}
