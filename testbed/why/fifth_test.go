package why_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// This is the fifth set of nodes. Whoever wrote it had read no rule of why, and none of its answers. Its pods have the names
// of stones, so that no pattern matches a name.

// fifthSet is the fifth set of nodes.
var fifthSet = set{
	name: "fifth", situations: (*patient).makeFifthSituations,
	first: func() []*corev1.Pod {
		return []*corev1.Pod{
			pod("idle", "sleep"), onSecond(pod("aged", "sleep"), "testbed/app:1"),
			slowlyProbed(pod("mica", "sleep"), "0s", 10), pod("flint", "sleep"), pod("onyx", "sleep"),
		}
	},
}

// Two nodes, with 5 and 30 pods, as in TestWhyOnASecondSetOfNodes. It takes ten minutes with the start of the nodes: use
// -timeout 20m, and CRIPROXY_TESTBED_RACE=off. -record and -acts do the same as there.
func TestWhyOnAFifthSetOfNodes(t *testing.T) { examine(t, fifthSet) }

const (
	// secondCameBack is what may be said when the second runtime was started again.
	secondCameBack = `old\.io .*(restart|gone|away|down|unavailable|refused|not ready|new process|another process|anew|ended|stopped|c[ao]me back)`
	// imageAbsent is false of an image that the registry has.
	imageAbsent = `(image|tag) (does not|doesn't) exist|no such (image|tag)|mistyped|misspel`
	// outOfMemory is false of each fault here. A runtime's own error may mention oom_score_adj, and does not match.
	outOfMemory = `(ran|run) out of memory|memory limit`
	// programMissing is false of each fault here whose error says "no such file".
	programMissing = `entry ?point|(program|command|executable|binary|image) (is missing|is not|was not|does not|did not|is lacking)`
)

// makeFifthSituations returns what happens on a node: first what fails when a pod starts, several at a time; then what is wrong
// with pods that run, and with parts of the second runtime, one after the other; at last what happens to kubelet.
//
// A runtime's own error may stand in any answer, as in the fourth set: see makeFourthSituations. A fault is repaired while its pod
// is there only if kubelet soon tries again: after a failed pull, or a failed start of a container, it waits longer each time.
func (p *patient) makeFifthSituations() []*situation {
	p.badRegistry(p.runtime, "vault.test", p.altersConfig("testbed/ore:1"))
	p.badRegistry(p.second, "portal.test", servesLoginPage)
	p.pushUnpackable("testbed/rubble:1")

	folder := withHostPath(pod("chert", "sleep"), p.t.TempDir(), corev1.HostPathUnset)
	folder.Spec.Containers[0].VolumeMounts[0].MountPath = "/etc/image" // a file of the image
	tools := p.t.TempDir()
	require.NoError(p.t, os.WriteFile(filepath.Join(tools, "tool"), []byte("echo there is no #! line\n"), 0o755))
	noFormat := withHostPath(pod("gabbro"), tools, corev1.HostPathUnset)
	noFormat.Spec.Containers[0].Command = []string{"/data/tool"}
	always := corev1.ContainerRestartPolicyAlways
	unready := pod("gneiss", "sleep")
	unready.Spec.InitContainers = []corev1.Container{{
		Name: "helper", Image: image, ImagePullPolicy: corev1.PullIfNotPresent, Args: []string{"sleep"}, RestartPolicy: &always,
		StartupProbe: &corev1.Probe{ProbeHandler: runs("app", "exit", "1"), PeriodSeconds: 5, FailureThreshold: 4, TimeoutSeconds: 10},
	}}
	unregistered := graceful(pod("gypsum", "sleep"), 30)
	unregistered.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: runs("/usr/bin/deregister").Exec}}

	lacksSubnet, waits, holds := filepath.Join(p.cni, "ADD-coral"), filepath.Join(p.cni, "ADD-jade"), filepath.Join(p.cni, "DEL-onyx")
	temporary := filepath.Join(p.second.Dir, "root", "tmpmounts")
	root := filepath.Join(p.second.Dir, "root")
	crashes := p.changing(func() error { return errors.Join(p.kubelet.Kill(), p.kubelet.Start(p.t.Context())) })
	limit := "" // the file with the limit of the processes of jasper
	const disabled = "disabled_plugins = ['io.containerd.grpc.v1.cri']\n"

	return []*situation{
		// What fails when a pod starts.
		{
			name: "blob-altered-on-its-way", pod: "agate", runtime: primary, at: seconds(4), claims: "registry", // by a broken cache
			says:   `digest|checksum|corrupt|mismatch|unexpected commit|alter|damag|(blob|content|config\w*)\b.*(differ|wrong|expected|not)`,
			denies: `unauthori[sz]ed|pull secret|certificate|no space|` + imageAbsent,
			acts:   []act{{0, p.adds(withImage(pod("agate", "sleep"), "vault.test/testbed/ore:1"))}, {seconds(95), p.ends("agate")}},
			asks:   []ask{{seconds(30), lasts}, {seconds(82), lasts}, {seconds(126), over}},
		},
		{
			name: "layer-is-no-archive", pod: "basalt", runtime: old, at: seconds(6), claims: "registry",
			says:   `layer|extract|unpack|\btar\b|archive|header|corrupt|damag`,
			denies: `unauthori[sz]ed|pull secret|certificate|no space|registry (refuse|limit|want|is (gone|down|away|slow))|` + imageAbsent,
			acts:   []act{{0, p.adds(onSecond(pod("basalt", "sleep"), "testbed/rubble:1"))}, {seconds(84), p.ends("basalt")}},
			asks:   []ask{{seconds(33), lasts}, {seconds(76), lasts}, {seconds(118), over}},
		},
		{
			name: "login-page-for-an-image", pod: "beryl", runtime: old, at: seconds(8), claims: "registry", // of a proxy between them
			says:   `html|media ?type|log-?in|sign|portal|proxy|manifest|format|unexpected|not an image`,
			denies: `unauthori[sz]ed|pull secret|certificate|` + imageAbsent,
			acts:   []act{{0, p.adds(withImage(onSecond(pod("beryl", "sleep"), ""), old+"/portal.test/testbed/app:1"))}, {seconds(84), p.ends("beryl")}},
			asks:   []ask{{seconds(36), lasts}, {seconds(77), lasts}, {seconds(121), over}},
		},
		{
			name: "folder-mounted-on-a-file", pod: "chert", runtime: primary, at: seconds(10), claims: "file memory",
			says:   `not a directory|director|folder|\bmount|volume|host ?path`,
			denies: programMissing + "|" + outOfMemory,
			acts:   []act{{0, p.adds(folder)}, {seconds(95), p.ends("chert")}},
			asks:   []ask{{seconds(39), lasts}, {seconds(85), lasts}, {seconds(135), over}},
		},
		{
			name: "subnet-file-missing", pod: "coral", runtime: primary, at: seconds(12), claims: "network file memory",
			says:   `subnet|flannel|network|plugin|\bcni\b`,
			denies: `no (more |free )?(ip )?address|plugin (binary |program )?(is missing|is not installed|is not there)|not ready|` + programMissing + "|" + outOfMemory,
			acts: []act{
				{0, both(writes(lacksSubnet, // as flannel's plugin, when its daemon does not run
					`printf %s '{"cniVersion":"1.0.0","code":999,"msg":"loadFlannelSubnetEnv failed: open /run/flannel/subnet.env: no such file or directory"}'; exit 1`+"\n"),
					p.adds(pod("coral", "sleep")))},
				{seconds(55), removes(lacksSubnet)}, {seconds(96), p.ends("coral")},
			},
			asks: []ask{{seconds(42), lasts}, {seconds(91), over}, {seconds(138), over}},
		},
		{
			name: "image-of-the-other-runtime", pod: "diorite", runtime: primary, at: seconds(14), // its annotation is forgotten
			says:   `old\.io|(other|another|different|two|several|wrong) (runtime|backend)|annotation|prefix`,
			denies: `unauthori[sz]ed|pull secret|` + imageAbsent,
			acts:   []act{{0, p.adds(withImage(pod("diorite", "sleep"), old+"/"+image))}, {seconds(95), p.ends("diorite")}},
			asks:   []ask{{seconds(45), lasts}, {seconds(86), lasts}, {seconds(141), over}},
		},
		{
			name: "program-has-no-format", twin: true, pod: "gabbro", runtime: primary, at: seconds(16), claims: "file", // it starts, and ends
			says:   `exec|format|exit|crash|restart|again|back-?off`,
			denies: `no such file|not found|missing|permission`,
			acts:   []act{{0, p.adds(noFormat)}, {seconds(95), p.ends("gabbro")}},
			asks:   []ask{{seconds(47), either}, {seconds(88), either}, {seconds(143), either}},
		},
		{
			name: "image-has-no-valid-name", twin: true, pod: "garnet", runtime: primary, at: seconds(18), // kubelet asks no runtime for it
			says: `no container|(not|never) (been )?(asked|created|started|pulled)|\bimage|kubelet (has|did|does)`,
			acts: []act{{0, p.adds(withImage(pod("garnet", "sleep"), registry+"/testbed/App:1"))}, {seconds(95), p.ends("garnet")}},
			asks: []ask{{seconds(49), either}, {seconds(145), either}},
		},
		{
			name: "sidecar-never-starts-up", twin: true, pod: "gneiss", runtime: primary, at: seconds(20), claims: "probe",
			says: `probe|exit|\binit\b|sidecar|helper|restart|crash|again|back-?off|no container|(not|never) (been )?(created|started|asked)`,
			acts: []act{{0, p.adds(unready)}, {seconds(95), p.ends("gneiss")}},
			asks: []ask{{seconds(51), either}, {seconds(89), either}, {seconds(147), either}},
		},
		{
			name: "log-is-rotated", twin: true, pod: "granite", runtime: primary, at: seconds(22), // it is longer than 10 MiB
			says: `ReopenContainerLog|\blogs?\b`,
			acts: []act{{0, p.adds(pod("granite", "log", "260000", "then", "sleep"))}, {seconds(95), p.ends("granite")}},
			asks: []ask{{seconds(40), either}, {seconds(90), either}},
		},
		{
			name: "deleted-while-it-starts", twin: true, pod: "jade", runtime: primary, at: seconds(24), claims: "network slow", // kubelet cancels the call
			says:   `cancel|delet|gave up|RunPodSandbox|under way|kubelet (has|had|did|no longer|stopp|end)|network|plugin`,
			denies: `refused|address|missing|not ready`,
			acts: []act{
				{0, both(writes(waits, fmt.Sprintf("while [ -e %s ]; do sleep 1; done\n", waits)), p.adds(pod("jade", "sleep")))},
				{seconds(20), p.ends("jade")}, {seconds(30), removes(waits)},
			},
			asks: []ask{{seconds(14), either}, {seconds(43), either}, {seconds(92), either}},
		},
		{
			name: "pre-stop-lacks-its-program", twin: true, pod: "gypsum", runtime: primary, at: seconds(72), claims: "file", // it ends all the same
			says: `\bhooks?\b|pre-?stop|exec|deregister|no such file|not found`,
			acts: []act{{seconds(-45), p.adds(unregistered)}, {0, p.ends("gypsum")}},
			asks: []ask{{seconds(13), either}, {seconds(45), either}},
		},

		// What is wrong with pods that run, and with parts of the second runtime.
		{
			name: "temporary-folder-removed", pod: "marble", runtime: old, at: seconds(99), claims: "file memory", // by who cleans up
			says:     `tmp|temporary|\btemp\b|containerd-mount|no such file|mkdir|director|folder`,
			everyone: `tmpmounts|containerd-mount|temp(orary)? (dir|folder|mount)|no such file`,
			denies:   `volume|\bcni\b|` + programMissing + "|" + outOfMemory,
			acts: []act{
				{0, both(func() error { return os.Rename(temporary, temporary+".aside") }, p.adds(onSecond(pod("marble", "sleep"), "testbed/app:1")))},
				{seconds(52), func() error { return os.Rename(temporary+".aside", temporary) }}, {seconds(85), p.ends("marble")},
			},
			asks: []ask{{seconds(29), lasts}, {seconds(47), lasts}, {seconds(84), over}, {seconds(111), over}},
		},
		{
			name: "network-holds-on", pod: "onyx", runtime: primary, at: seconds(128), claims: "network slow runtime grace",
			says: `\bcni\b|network|plugin|tear|StopPodSandbox|` +
				`(stop\w*|end\w*|remov\w*|delet\w*|terminat\w*)\b.*(under way|\bnot\b|still|hang|hung|since|wait)`,
			denies: `\b(primary|containerd) (hangs|hung|is (frozen|silent|gone|away|down))|refused|ip address`,
			acts: []act{
				{0, both(writes(holds, fmt.Sprintf("while [ -e %s ]; do sleep 1; done\n", holds)), p.ends("onyx"))},
				{seconds(66), removes(holds)},
			},
			asks: []ask{{seconds(32), lasts}, {seconds(61), lasts}, {seconds(98), over}, {seconds(146), over}},
		},
		{
			name: "kill-is-denied", pod: "flint", runtime: primary, at: seconds(131), claims: "grace file memory", // as by a wrong profile of AppArmor
			says: `permission denied|signal|\bkill|apparmor|StopContainer|` +
				`(stop\w*|end\w*|remov\w*|delet\w*|terminat\w*)\b.*(\bnot\b|fail|error|refus|denied)`,
			denies: `(program|process|container) (ignor|does not (handle|react)|is uninterruptible)|` + outOfMemory,
			acts: []act{
				{0, func() error {
					id, _, err := p.process("flint")
					if err != nil {
						return err
					}
					refuses := fmt.Sprintf("case \" $* \" in *' kill '*%s*) echo 'unable to signal init: permission denied' >&2; exit 1 ;; esac\n", id)
					return both(writes(p.broken(), refuses), p.ends("flint"))()
				}},
				{seconds(67), removes(p.broken())},
			},
			asks: []ask{{seconds(33), lasts}, {seconds(62), lasts}, {seconds(104), over}, {seconds(148), over}},
		},
		{
			name: "no-more-processes", pod: "jasper", runtime: primary, at: seconds(134), claims: "file memory", // its pod has as many as it may
			says:   `\bpids?\b|process|fork|clone|stage-|resource temporarily|EAGAIN|thread|final child|\brunc\b|oci runtime`,
			denies: `\bcni\b|image (is|was|does)|` + programMissing + "|" + outOfMemory,
			acts: []act{
				{seconds(-38), p.adds(pod("jasper", "sleep"))},
				{0, func() (err error) { // its program ends, and kubelet starts it again
					var pid int
					if limit, pid, err = p.processLimit("jasper"); err != nil {
						return err
					}
					return errors.Join(os.WriteFile(limit, []byte("1"), 0o644), unix.Kill(pid, unix.SIGTERM))
				}},
				{seconds(78), func() error {
					if limit == "" {
						return errors.New("there is no limit to lift")
					}
					return both(writes(limit, "max"), p.ends("jasper"))()
				}},
			},
			asks: []ask{{seconds(34), lasts}, {seconds(70), lasts}, {seconds(112), over}},
		},
		{
			name: "program-stands-still", twin: true, pod: "mica", runtime: primary, at: seconds(137), // and its probe is well
			acts: []act{
				{0, p.signals("mica", unix.SIGSTOP)}, {seconds(70), p.signals("mica", unix.SIGCONT)},
			},
			asks: []ask{{seconds(35), either}, {seconds(66), either}, {seconds(94), either}},
		},
		{
			name: "person-pulls-in-vain", twin: true, runtime: primary, at: seconds(146), claims: "registry", // what no pod needs
			says: `crictl|by hand|(another|other|different) client|not (by )?kubelet|testbed/nothing`,
			acts: []act{{0, func() error {
				for range 3 {
					if p.ctl("pull", registry+"/testbed/nothing:1") == nil {
						return errors.New("there is such an image")
					}
				}
				return nil
			}}},
			asks: []ask{{seconds(12), either}, {seconds(56), either}},
		},
		{
			name: "configuration-refused", twin: true, at: seconds(154), // criproxy goes on with the old one
			says: `configur|reload|yaml`,
			acts: []act{
				{0, func() error { return p.proxy.Configure(p.proxy.YAML + "- adress: [/run/typo.sock\n") }},
				{seconds(38), func() error { return p.proxy.Configure(p.proxy.YAML) }},
			},
			asks: []ask{{seconds(22), either}, {seconds(58), either}},
		},
		{
			name: "shim-not-installed", pod: "obsidian", runtime: old, at: seconds(195), claims: "runtime gone slow file shim memory",
			says:     `runsc|gvisor|not installed|\bshim\b|runtime (binary|type|handler|path|class)|file does not exist`,
			everyone: `runsc|gvisor|not installed|` + secondCameBack,
			denies:   `image (is|was|does|did)|\bcni\b|shim (died|was killed|did not answer|does not answer|hangs)|` + outOfMemory,
			acts: []act{
				{0, p.configures("io.containerd.runc.v2", "io.containerd.runsc.v1")},
				{seconds(6), p.adds(onSecond(pod("obsidian", "sleep"), "testbed/app:1"))},
				{seconds(47), p.configures("io.containerd.runsc.v1", "io.containerd.runc.v2")}, {seconds(79), p.ends("obsidian")},
			},
			asks: []ask{{seconds(42), lasts}, {seconds(78), over}, {seconds(99), over}},
		},
		{
			name: "criproxy-stands-still", twin: true, pod: "topaz", runtime: primary, at: seconds(288), // and so records nothing
			says: `criproxy|recor`,
			acts: []act{
				{seconds(-45), p.adds(pod("topaz", "sleep"))},
				{0, func() error { // one act, as nobody can be asked meanwhile
					err := p.proxy.Freeze()
					time.Sleep(16 * time.Second)
					return errors.Join(err, p.proxy.Thaw())
				}},
			},
			asks: []ask{{seconds(23), either}, {seconds(56), either}},
		},
		{
			name: "disk-turns-read-only", pod: "opal", runtime: old, at: seconds(295), claims: "disk file memory", // as after its errors
			says:     `read-?only|EROFS|file ?system|\bdisk\b`,
			everyone: `read-?only|EROFS|file ?system|\bdisk\b`,
			denies:   `no space|(disk|device|file ?system) (is|was) full|inode|` + outOfMemory,
			acts: []act{
				{0, both(covers(root), p.adds(onSecond(pod("opal", "sleep"), "testbed/app:1")))},
				{seconds(50), func() error { return unix.Unmount(root, unix.MNT_DETACH) }}, {seconds(82), p.ends("opal")},
			},
			asks: []ask{{seconds(30), lasts}, {seconds(46), lasts}, {seconds(81), over}, {seconds(104), over}},
		},
		{
			name: "cri-is-disabled", pod: "quartz", runtime: old, at: seconds(390), claims: "runtime gone slow file", // as after an upgrade
			says: `unknown service|unimplemented|disabled|(not|never) (loaded|implemented|served|enabled)|serves none|` +
				`(does|did) not (implement|serve|speak|offer|have|know)|runtime\.v1|\bCRI\b|` + secondCameBack,
			everyone: `unknown service|unimplemented|disabled|not (loaded|implemented|served|enabled)|serves none|\bCRI\b|` + secondCameBack +
				`|(sandbox|container)\w*\b.*(again|anew|replac|lost|gone|vanish|missing|unknown|reserved)`, // it shows no pods meanwhile
			denies: `(disk|registry|network|image) (is|was|does|did)`,
			acts: []act{
				{0, func() error { return p.restartsWithoutCRI(disabled) }},
				{seconds(7), p.adds(onSecond(pod("quartz", "sleep"), "testbed/app:1"))},
				{seconds(50), p.configures(disabled, "")}, {seconds(81), p.ends("quartz")},
			},
			asks: []ask{{seconds(44), lasts}, {seconds(80), over}, {seconds(100), over}},
		},

		// What happens to kubelet.
		{
			name: "kubelet-crashes-again-and-again", at: seconds(480), claims: "kubelet",
			says:     kubeletCameBack + `|kubelet .*(crash|again|times|ended|killed|start)`,
			everyone: kubeletCameBack + `|kubelet .*(crash|again|times|ended|killed|start)|cancel`,
			denies:   `kubelet (is|was) frozen`,
			acts:     []act{{0, crashes}, {seconds(11), crashes}, {seconds(22), crashes}, {seconds(33), crashes}},
			asks:     []ask{{seconds(40), either}, {seconds(54), over}},
		},
	}
}

// altersConfig puts an image into the registry, and returns a registry that has all that the other one has, but not that
// image's configuration as it was.
func (p *patient) altersConfig(image string) http.HandlerFunc {
	config := p.push(image, func(c *v1.Config) { c.Labels = map[string]string{"ore": "yes"} }).Hex
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: p.registry.Addr})
	proxy.ModifyResponse = func(r *http.Response) error {
		if !strings.HasSuffix(r.Request.URL.Path, config) {
			return nil
		}
		text, err := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(bytes.ReplaceAll(text, []byte(`"yes"`), []byte(`"not"`))))
		return err
	}
	return proxy.ServeHTTP
}

// servesLoginPage answers each request as a proxy does that wants people to log in.
func servesLoginPage(w http.ResponseWriter, _ *http.Request) {
	const page = "<!DOCTYPE html><html><body><form>Please sign in to continue.</form></body></html>\n"
	w.Header().Set("Content-Type", "text/html")
	w.Header().Set("Content-Length", fmt.Sprint(len(page)))
	fmt.Fprint(w, page)
}

// pushUnpackable puts an image into the registry whose last layer is no archive.
func (p *patient) pushUnpackable(image string) {
	rubbish := static.NewLayer(bytes.Repeat([]byte("rubbish "), 512), types.OCIUncompressedLayer)
	made, err := mutate.AppendLayers(p.pushed("testbed/app:1"), rubbish)
	require.NoError(p.t, err)
	require.NoError(p.t, p.registry.Push(image, made))
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

// processLimit returns the file with the limit of the processes of a pod on the primary, and the process of its container.
func (p *patient) processLimit(pod string) (file string, pid int, err error) {
	_, pid, err = p.process(pod)
	if err != nil {
		return "", 0, err
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return "", 0, err
	}
	for line := range strings.Lines(string(text)) { // 7:pids:/kubelet/podUID/ID, or 0::/kubelet/podUID/ID on version 2
		words := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(words) == 3 && (slices.Contains(strings.Split(words[1], ","), "pids") || words[1] == "" && file == "") {
			file = filepath.Join("/sys/fs/cgroup", words[1], filepath.Dir(words[2]), "pids.max")
		}
	}
	_, err = os.Stat(file)
	return file, pid, err
}

// covers returns the act that covers a folder with itself, but one may only read there. Files that are open stay as they were.
func covers(folder string) func() error {
	return func() error {
		if err := unix.Mount(folder, folder, "", unix.MS_BIND, ""); err != nil {
			return err
		}
		return unix.Mount("", folder, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
	}
}

// restartsWithoutCRI puts a line before the configuration of the second runtime, and starts it again. It does not wait until the
// runtime answers calls of CRI.
func (p *patient) restartsWithoutCRI(line string) error {
	pid, alive := p.second.PID()
	if !alive {
		return errors.New("the second runtime has ended")
	}
	argv, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return err
	}
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return err
	}
	file := filepath.Join(p.second.Dir, "config.toml")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	words := func(list []byte) []string { return strings.Split(strings.TrimSuffix(string(list), "\x00"), "\x00") }
	return errors.Join(
		os.WriteFile(file, []byte(line+string(text)), 0o644),
		p.second.Terminate(p.t.Context()),
		p.second.Process.Start(words(argv), words(env)),
	)
}
