package why_test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// This is the thirteenth set of nodes. Whoever wrote it had read no rule of why, and none of its answers. Its pods have the names
// of mountains, so that no pattern matches a name.

// thirteenthSet is the thirteenth set of nodes.
var thirteenthSet = set{
	name: "thirteenth", situations: (*patient).makeThirteenthSituations,
	first: func() []*corev1.Pod {
		checked := slowlyProbed(pod("denali", "sleep"), "0s", 10)
		checked.Spec.Containers[0].ReadinessProbe.PeriodSeconds = 5
		lingering := graceful(pod("aconcagua", "sleep"), 14)
		lingering.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: runs("app", "sleep", "60s").Exec}}
		return []*corev1.Pod{
			pod("idle", "sleep"), onSecond(pod("aged", "sleep"), "testbed/app:1"), checked, lingering, pod("triglav", "sleep"),
		}
	},
}

// Two nodes, with 5 and 30 pods, as in TestWhyOnASecondSetOfNodes. It takes ten minutes with the start of the nodes: use
// -timeout 20m, and CRIPROXY_TESTBED_RACE=off. -record and -acts do the same as there. The machine must have FUSE.
func TestWhyOnAThirteenthSetOfNodes(t *testing.T) { examine(t, thirteenthSet) }

// makeThirteenthSituations returns what happens on a node: first what fails when a pod starts, several at a time; then what is
// wrong with pods that run or end, and what people do besides kubelet; at last what concerns criproxy, kubelet and a whole runtime.
//
// A runtime's own error may stand in any answer: see acts_test.go. Nothing is pretended but the registries' answers, and that the
// network's plugin takes its time.
func (p *patient) makeThirteenthSituations() []*situation {
	p.badRegistry(p.second, "summit.test", func(w http.ResponseWriter, _ *http.Request) { // nobody gives the token that it wants
		w.Header().Set("WWW-Authenticate", `Bearer realm="http://127.0.0.1:1/token",service="summit.test",scope="repository:testbed/app:pull"`)
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`)
	})
	p.badRegistry(p.runtime, "glacier.test", firstSchema)
	_, cornice := p.pushWithFile("testbed/slope:1", "cornice")

	ontoFile := withHostPath(onSecond(pod("lhotse", "sleep"), "testbed/slope:1"), p.t.TempDir(), corev1.HostPathUnset)
	ontoFile.Spec.Containers[0].VolumeMounts[0].MountPath = "/" + cornice
	lacking := "profiles/strict.json"
	unprofiled := onSecond(pod("makalu", "sleep"), "testbed/app:1")
	unprofiled.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: &lacking},
	}
	silent := p.t.TempDir()
	mute, hangUp := p.muteVolume(silent)
	unwarmed := onSecond(pod("dhaulagiri", "sleep"), "testbed/app:1")
	unwarmed.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: runs("/opt/warmup").Exec}}
	unprepared := pod("ararat", "sleep")
	unprepared.Spec.InitContainers = []corev1.Container{{Name: "migrate", Image: image, ImagePullPolicy: corev1.PullIfNotPresent, Args: []string{"exit", "2"}}}
	starting := pod("fuji", "wait", "30s", "then", "write", "/ready", "yes", "then", "sleep")
	starting.Spec.Containers[0].StartupProbe = &corev1.Probe{ProbeHandler: runs("app", "file", "/ready"), PeriodSeconds: 3, FailureThreshold: 60}
	outside := p.t.TempDir()
	require.NoError(p.t, os.Symlink("/etc", filepath.Join(outside, "out")))
	astray := withHostPath(pod("vesuvius", "sleep"), outside, corev1.HostPathUnset)
	astray.Spec.Containers[0].VolumeMounts[0].SubPath = "out"
	brief, deadline := pod("kilimanjaro", "sleep"), int64(25)
	brief.Spec.ActiveDeadlineSeconds = &deadline
	_, taken, err := net.SplitHostPort(p.registry.Addr)
	require.NoError(p.t, err)
	late := pod("teide", "serve", taken)
	late.Spec.HostNetwork = true

	scratch := p.t.TempDir()
	work := filepath.Join(scratch, "work")
	require.NoError(p.t, os.Mkdir(work, 0o755))
	working := slowlyProbed(withHostPath(onSecond(pod("elbrus", "sleep"), "testbed/app:1"), scratch, corev1.HostPathUnset), "0s", 10)
	working.Spec.Containers[0].WorkingDir = "/data/work"
	working.Spec.Containers[0].ReadinessProbe.PeriodSeconds = 5
	swept := slowlyProbed(onSecond(pod("etna", "sleep"), "testbed/app:1"), "0s", 10)
	swept.Spec.Containers[0].ReadinessProbe.PeriodSeconds = 5

	network := networkOf(p.second)
	networkText, err := os.ReadFile(network)
	require.NoError(p.t, err)
	ontoLoopback := strings.Replace(string(networkText), fmt.Sprintf(`"bridge": %q`, p.second.Bridge()), `"bridge": "lo"`, 1)
	require.NotEqual(p.t, string(networkText), ontoLoopback)
	var waiting, slow []*corev1.Pod
	var waitingNames, slowNames []string
	for i := range 3 {
		waitingNames, slowNames = append(waitingNames, fmt.Sprintf("dachstein-%d", i)), append(slowNames, fmt.Sprintf("rysy-%d", i))
		waiting, slow = append(waiting, onSecond(pod(waitingNames[i], "sleep"), "testbed/app:1")), append(slow, pod(slowNames[i], "sleep"))
	}
	takeLock, leaveLock := p.keepsAddressLock()
	addWaits := filepath.Join(p.cni, "ADD-jungfrau")

	yaml := p.proxy.YAML
	configure := func(text string) func() error { return func() error { return p.proxy.Configure(text) } }
	hardened := yaml + "listeners:\n- path: " + p.proxy.Socket() + "\n  access:\n  - methods: [read-only, /runtime.v1.ImageService/*, RunPodSandbox, " +
		"StopPodSandbox, RemovePodSandbox, CreateContainer, StartContainer, StopContainer, RemoveContainer, UpdateContainerResources, " +
		"ReopenContainerLog, UpdateRuntimeConfig, Exec, Attach, PortForward]\n" // all that kubelet calls but ExecSync
	var moved, hidden string // the folder in which runc knew a container, and where it is now
	var shim int             // the stopped one
	p.t.Cleanup(func() {     // all fail if that was done
		_ = os.Rename(hidden, moved)
		if shim != 0 {
			_ = unix.Kill(shim, unix.SIGCONT)
		}
	})

	return []*situation{
		// What fails when a pod starts.
		{
			name: "nobody-gives-tokens", pod: "eiger", runtime: old, at: seconds(4), claims: "registry network", // the registry itself answers
			says: `token|\bauth|refused|(can|could) ?not (be )?(reach|connect)|127\.0\.0\.1:1\b|unreachable|realm`,
			denies: `pull secret|log ?in\b|wrong password|certificate|no such host|no space|\b40[34]\b|(registry|summit\.test\S*) (is (down|gone|away|unreachable)|` +
				`refuse|does not|did not|cannot)|` + imageAbsent,
			acts: []act{{0, p.adds(withImage(onSecond(pod("eiger", "sleep"), ""), old+"/summit.test/testbed/app:1"))}, {seconds(95), p.ends("eiger")}},
			asks: []ask{{seconds(30), lasts}, {seconds(80), lasts}, {seconds(124), over}},
		},
		{
			name: "image-of-schema-1", pod: "weisshorn", runtime: primary, at: seconds(6), claims: "registry", // containerd 2 knows it no more
			says: `schema ?(version)? ?1|manifest\.v1|prettyjws|media ?type|no longer supported|rebuil[dt]|(not|un)[ -]?(implemented|supported)|` +
				`(old|outdated) .*(format|manifest|image)`,
			denies: `unauthori[sz]ed|pull secret|certificate|no space|refused|platform|architecture|corrupt|damaged|` + imageAbsent,
			acts:   []act{{0, p.adds(withImage(pod("weisshorn", "sleep"), "glacier.test/testbed/app:1"))}, {seconds(95), p.ends("weisshorn")}},
			asks:   []ask{{seconds(33), lasts}, {seconds(81), lasts}, {seconds(126), over}},
		},
		{
			name: "folder-mounted-onto-a-file", pod: "lhotse", runtime: old, at: seconds(8), claims: "file memory", // of the image
			says:   `not a directory|vice-?versa|volume|\bmount|host ?path|cornice|(dir|fold)\w*\b.*\bfile\b|\bfile\b.*(dir|fold)`,
			denies: `no such file|(path|volume) (does not|doesn't) exist|permission|symbolic|no space|\bcni\b|` + programAbsent + "|" + imageAbsent + "|" + outOfMemory,
			acts:   []act{{0, p.adds(ontoFile)}, {seconds(95), p.ends("lhotse")}},
			asks:   []ask{{seconds(36), lasts}, {seconds(82), lasts}, {seconds(128), over}},
		},
		{
			name: "profile-of-calls-is-nowhere", pod: "makalu", runtime: old, at: seconds(10), claims: "file memory", // a file for seccomp
			says:   `seccomp|profile`,
			denies: `apparmor|selinux|volume|\bcni\b|no space|\bbpf\b|` + programMissing + "|" + outOfMemory,
			acts:   []act{{0, p.adds(unprofiled)}, {seconds(95), p.ends("makalu")}},
			asks:   []ask{{seconds(39), lasts}, {seconds(83), lasts}, {seconds(130), over}},
		},
		{
			name: "volume-does-not-answer", pod: "annapurna", runtime: primary, at: seconds(12), claims: "slow runtime network disk file memory", // as NFS
			says: `CreateContainer|volume|\bmount|\bnfs\b|host ?path|transport endpoint|\bstat\b|` +
				`(start|creat|call|container)\w*\b.*(under way|\bnot\b|hang|hung|still|slow|since|wait|for \d)`,
			denies: `\b(primary|containerd) (hangs|hung|is (frozen|silent|gone|away|down))|\bcni\b|network plugin|no space|\bpull(s|ing)?\b|read-?only|` +
				programAbsent + "|" + imageAbsent + "|" + outOfMemory,
			everyone: `CreateContainer`,
			acts: []act{
				{0, both(mute, p.adds(withHostPath(pod("annapurna", "sleep"), silent, corev1.HostPathUnset)))},
				{seconds(66), hangUp}, {seconds(106), p.ends("annapurna")},
			},
			asks: []ask{{seconds(43), lasts}, {seconds(61), lasts}, {seconds(100), over}, {seconds(132), over}},
		},
		{
			name: "post-start-lacks-its-program", pod: "dhaulagiri", runtime: old, at: seconds(14), claims: "file probe memory",
			says:   `post-?start|\bhook|\bexec|no such file|not found|missing|(does not|doesn't) exist|warmup`,
			denies: `(exec|liveness|readiness|startup|its) probe|pre-?stop|entry ?point|volume|\bcni\b|permission|no space|` + imageAbsent + "|" + outOfMemory,
			acts:   []act{{0, p.adds(unwarmed)}, {seconds(95), p.ends("dhaulagiri")}},
			asks:   []ask{{seconds(41), lasts}, {seconds(84), lasts}, {seconds(127), over}},
		},
		{
			name: "init-container-fails", twin: true, pod: "ararat", runtime: primary, at: seconds(16), // again and again
			says:   `exit|crash|restart|again|back-?off|fail|code|ended`,
			denies: `hang|hung|probe|` + outOfMemory,
			acts:   []act{{0, p.adds(unprepared)}, {seconds(95), p.ends("ararat")}},
			asks:   []ask{{seconds(46), either}, {seconds(85), either}},
		},
		{
			name: "startup-takes-its-time", twin: true, pod: "fuji", runtime: primary, at: seconds(18), claims: "probe", // and its probe waits
			says:   `probe|not (yet )?ready|start(ing|up)`,
			denies: `no such file|tim(e|ed)[ -]?out|hang|hung|crash|(does|did) not start|killed`,
			acts:   []act{{0, p.adds(starting)}, {seconds(95), p.ends("fuji")}},
			asks:   []ask{{seconds(22), either}, {seconds(57), either}, {seconds(86), either}},
		},
		{
			name: "sub-path-leads-outside", twin: true, pod: "vesuvius", runtime: primary, at: seconds(20), // kubelet refuses, and asks for no container
			says: `sub-?path|volume|` + notAsked,
			acts: []act{{0, p.adds(astray)}, {seconds(95), p.ends("vesuvius")}},
			asks: []ask{{seconds(49), either}, {seconds(87), either}},
		},
		{
			name: "deadline-of-the-pod", twin: true, pod: "kilimanjaro", runtime: primary, at: seconds(22), // its manifest has one, and kubelet ends it
			says:   `deadline|kubelet (has|had|did|does|stop|end|kill)\w*|\bexit|ended|stopped`,
			denies: `crash|hang|hung|delet|` + outOfMemory,
			acts:   []act{{0, p.adds(brief)}, {seconds(95), p.ends("kilimanjaro")}},
			asks:   []ask{{seconds(30), either}, {seconds(54), either}, {seconds(88), either}},
		},
		{
			name: "port-is-taken", twin: true, pod: "teide", runtime: primary, at: seconds(24), // on the machine, whose network it has
			says:   `exit|crash|restart|again|back-?off|fail|code|ended`,
			denies: `hang|hung|refused|` + outOfMemory,
			acts:   []act{{0, p.adds(late)}, {seconds(95), p.ends("teide")}},
			asks:   []ask{{seconds(51), either}, {seconds(89), either}},
		},

		// What is wrong with pods that run or end, and what people do besides kubelet.
		{
			name: "working-folder-removed", pod: "elbrus", runtime: old, at: seconds(158), claims: "probe file memory", // so no probe can start there
			says: `\bcwd\b|chdir|work(ing)? ?(dir|fold)|/data/work|no such file|\brunc\b|oci runtime|(exec\w*|probe)\b.*(fail|error|\bnot\b|start)`,
			denies: `tim(e|ed)[ -]?out|longer than|paus(ed|ing)|shim (is|was|did|died|does)|(image|container) (lacks|has no)|\bcni\b|no space|` +
				programAbsent + "|" + outOfMemory,
			acts: []act{
				{seconds(-45), p.adds(working)},
				{0, removes(work)}, {seconds(62), func() error { return os.Mkdir(work, 0o755) }}, {seconds(98), p.ends("elbrus")},
			},
			asks: []ask{{seconds(28), lasts}, {seconds(57), lasts}, {seconds(93), over}, {seconds(124), over}},
		},
		{
			name: "state-of-runc-swept-away", pod: "etna", runtime: old, at: seconds(161), claims: "probe file memory", // as by systemd-tmpfiles
			says: `(container|state)\b.*(not exist|no such|not found|missing|gone|lost|unknown)|\brunc\b|oci runtime|` +
				`(exec\w*|probe)\b.*(fail|error|\bnot\b|start)`,
			denies: `tim(e|ed)[ -]?out|longer than|paus(ed|ing)|shim (is|was|did|died|does)|crash|exited|\bcni\b|no space|` + programAbsent + "|" + outOfMemory,
			acts: []act{
				{seconds(-44), p.adds(swept)},
				{0, func() error {
					id, err := p.sole(p.second, "container", "etna")
					if err != nil {
						return err
					}
					moved, hidden = filepath.Join(p.second.Dir, "runc", "k8s.io", id), filepath.Join(p.second.Dir, "swept")
					return os.Rename(moved, hidden)
				}},
				{seconds(61), func() error { return os.Rename(hidden, moved) }}, {seconds(97), p.ends("etna")},
			},
			asks: []ask{{seconds(29), lasts}, {seconds(56), lasts}, {seconds(92), over}, {seconds(123), over}},
		},
		{
			name: "shim-stopped-before-the-end", pod: "ortler", runtime: old, at: seconds(164), claims: "grace slow runtime shim", // of its pod, by a debugger
			says: `\bshim|grace period|\bkill|StopContainer|` +
				`(stop\w*|end\w*|terminat\w*|remov\w*|delet\w*)\b.*(under way|\bnot\b|still|hang|hung|since|wait)`,
			denies: `old\.io (hangs|hung|is (frozen|silent|gone|away|down))|\bcni\b|container (is|was) (paused|frozen)|` +
				`shim (died|crashed|(is|was) (gone|killed|dead))|` + outOfMemory,
			everyone: `stats\b|\bshim\b|StopContainer`,
			acts: []act{
				{seconds(-43), p.adds(onSecond(pod("ortler", "sleep"), "testbed/app:1"))},
				{0, func() error {
					pid, err := p.shimOn(p.second, "ortler")
					if err != nil {
						return err
					}
					shim = pid
					return both(func() error { return unix.Kill(shim, unix.SIGSTOP) }, p.ends("ortler"))()
				}},
				{seconds(66), func() error { return unix.Kill(shim, unix.SIGCONT) }},
			},
			asks: []ask{{seconds(31), lasts}, {seconds(60), lasts}, {seconds(94), over}, {seconds(120), over}},
		},
		{
			name: "bridge-has-the-name-of-another-device", pod: "rigi", runtime: old, at: seconds(167), claims: "network",
			says:     `bridge|"lo"|already exists|\bcni\b|network|plugin`,
			everyone: `\bbridge\b`,
			denies:   addressesOut + "|" + imageAbsent,
			acts: []act{
				{0, both(writes(network, ontoLoopback), p.addsLater(onSecond(pod("rigi", "sleep"), "testbed/app:1")))},
				{seconds(50), writes(network, string(networkText))}, {seconds(88), p.ends("rigi")},
			},
			asks: []ask{{seconds(26), lasts}, {seconds(45), lasts}, {seconds(83), over}, {seconds(114), over}},
		},
		{
			name: "hook-outlasts-its-grace", twin: true, pod: "aconcagua", runtime: primary, at: seconds(170), claims: "grace slow", // and kubelet goes on
			says:   `\bhook|pre-?stop|grace|\bexec|\b137\b|\bkill`,
			denies: `\bhang|\bhung|post-?start|probe|` + outOfMemory,
			acts:   []act{{0, p.ends("aconcagua")}},
			asks:   []ask{{seconds(10), either}, {seconds(47), either}},
		},
		{
			name: "several-leave-the-network-slowly", twin: true, pod: "rysy-", runtime: primary, at: seconds(173), // but they do
			acts: []act{
				{seconds(-42), p.adds(slow...)},
				{0, func() (err error) {
					for _, one := range slowNames {
						err = errors.Join(err, writes(filepath.Join(p.cni, "DEL-"+one), "sleep 9\n")())
					}
					return errors.Join(err, p.ends(slowNames...)())
				}},
				{seconds(44), func() (err error) {
					for _, one := range slowNames {
						err = errors.Join(err, os.Remove(filepath.Join(p.cni, "DEL-"+one)))
					}
					return err
				}},
			},
			asks: []ask{{seconds(8), either}, {seconds(48), either}},
		},
		{
			name: "person-wants-a-checkpoint", twin: true, pod: "triglav", runtime: primary, at: seconds(176), claims: "file", // without CRIU
			says:     byHand + `|checkpoint|\bcriu\b`,
			everyone: byHand + `|checkpoint`,
			denies:   `kubelet (is|was|does|did|cannot|has)|crash|killed|restart|` + outOfMemory,
			acts: []act{{0, func() error {
				id, _, err := p.process("triglav")
				if err != nil {
					return err
				}
				for range 3 {
					if p.ctl("checkpoint", "--export", filepath.Join(p.dir, "triglav.tar"), id) == nil {
						return errors.New("CRIU is installed")
					}
				}
				return nil
			}}},
			asks: []ask{{seconds(13), either}, {seconds(49), either}},
		},
		{
			name: "program-killed-with-ctr", twin: true, pod: "musala", runtime: old, at: seconds(179), // by who thinks that this restarts it, and it does
			says:   `\b137\b|\bkill|signal|exit|restart|again|anew|ended`,
			denies: `grace|hang|hung|delet|` + outOfMemory,
			acts: []act{
				{seconds(-44), p.adds(onSecond(pod("musala", "sleep"), "testbed/app:1"))},
				{0, func() error {
					id, err := p.sole(p.second, "container", "musala")
					if err == nil {
						_, err = p.ctr(p.second, "tasks", "kill", "-s", "SIGKILL", id)
					}
					return err
				}},
				{seconds(78), p.ends("musala")},
			},
			asks: []ask{{seconds(15), either}, {seconds(51), either}, {seconds(96), either}},
		},
		{
			name: "configuration-has-a-mistake", twin: true, at: seconds(182), // and criproxy goes on with the one before
			says:     reconfigured + `|mistake|unknown|goneAfterwards|refus|invalid`,
			everyone: reconfigured + `|mistake|goneAfterwards`,
			denies:   `\b(primary|old\.io) (is|was) gone|kubelet (is|was|has)|criproxy (is|was|has) (gone|down|ended|stopped)`,
			acts:     []act{{0, configure(yaml + "goneAfterwards: 12s\n")}, {seconds(29), configure(yaml)}},
			asks:     []ask{{seconds(17), either}, {seconds(53), either}},
		},
		{
			name: "somebody-keeps-the-lock-of-addresses", pod: "dachstein-", runtime: old, at: seconds(282), claims: "network slow runtime file",
			says: `StopPodSandbox|\bcni\b|network|\block|` +
				`(stop|end|terminat|remov|delet|sandbox)\w*\b.*(under way|\bnot\b|still|hang|hung|since|wait|for \d)`,
			denies:   `old\.io (hangs|hung|is (frozen|silent|gone|away|down))|grace period|SIGTERM|` + addressesOut + "|" + outOfMemory,
			everyone: `(Stop|Remove)PodSandbox`, // kubelet also removes what ended before
			acts: []act{
				{seconds(-50), p.adds(waiting...)},
				{0, both(takeLock, p.ends(waitingNames...))}, {seconds(64), leaveLock},
			},
			asks: []ask{{seconds(32), lasts}, {seconds(59), lasts}, {seconds(92), over}},
		},

		// What concerns criproxy, kubelet and a whole runtime.
		{
			name: "kubelet-may-not-run-probes", at: seconds(286), claims: "probe", // since somebody has hardened criproxy's socket
			says:     `permission ?denied|\baccess|(not|n't) (be )?allow|may not|forbid|ExecSync`,
			everyone: `permission ?denied|\baccess|(not|n't) (be )?allow|may not|forbid|ExecSync|\bexec|probe|` + reconfigured,
			denies:   `tim(e|ed)[ -]?out|longer than|no such file|hang|hung|shim|(program|command) (is missing|does not exist)|file mode`,
			acts:     []act{{0, configure(hardened)}, {seconds(50), configure(yaml)}},
			asks:     []ask{{seconds(25), lasts}, {seconds(46), lasts}, {seconds(75), over}},
		},
		{
			// The plugin's child goes on when kubelet has hung up, and until it ends the runtime keeps the name of the sandbox.
			name: "kubelet-restarted-while-a-sandbox-is-made", pod: "jungfrau", at: seconds(378), claims: "network slow runtime kubelet file memory",
			says: `reserv|RunPodSandbox|\bcni\b|network|plugin|sandbox\b.*(under way|\bnot\b|slow|still|hang|hung|wait|since|for \d|fail)`,
			denies: `no (more |free )?(ip )?address|plugin (binary |program )?(is missing|is not installed|is not there)|old\.io|no space|` +
				`\b(primary|containerd) (hangs|hung|is (frozen|silent|gone|away|down))|` + programMissing + "|" + imageAbsent,
			everyone: kubeletCameBack,
			acts: []act{
				{0, both(writes(addWaits, "rm -f "+addWaits+"\nsleep 72\n"), p.adds(pod("jungfrau", "sleep")))},
				{seconds(6), p.changing(func() error { return errors.Join(p.kubelet.Terminate(p.t.Context()), p.kubelet.Start(p.t.Context())) })},
				{seconds(112), p.ends("jungfrau")},
			},
			asks: []ask{{seconds(40), lasts}, {seconds(58), lasts}, {seconds(106), over}},
		},
		{
			name: "runtime-crashes-again-and-again", runtime: old, at: seconds(440), claims: "runtime gone slow probe network",
			says:     secondCameBack,
			everyone: secondCameBack + `|old\.io .*(slow|silent|not answer|no answer)|was (gone|slow|restarted|replaced)|not initiali[sz]ed`,
			denies:   `no space|frozen|froze\b|configur|` + outOfMemory,
			acts:     []act{{0, p.crashesSecond}, {seconds(12), p.crashesSecond}, {seconds(24), p.crashesSecond}, {seconds(36), p.crashesSecond}},
			asks:     []ask{{seconds(33), either}, {seconds(78), over}},
		},
		{
			name: "criproxy-is-killed", twin: true, at: seconds(524), // and started again
			says:     `criproxy|\brecord`,
			everyone: `criproxy|\brecord`,
			denies:   `(kubelet|primary|old\.io) (is|was|has been) (gone|down|away|stopped|frozen|silent|restarted)`,
			acts:     []act{{0, func() error { return errors.Join(p.proxy.Kill(), p.proxy.Start(p.t.Context())) }}},
			asks:     []ask{{seconds(12), either}},
		},
	}
}

// muteVolume returns the acts between which a FUSE file system is mounted on a folder whose server says nothing: whoever looks there
// waits, as for NFS.
func (p *patient) muteVolume(dir string) (begin, end func() error) {
	server := -1
	begin = func() (err error) {
		if server, err = unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
			return err
		}
		return unix.Mount("export", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", server))
	}
	end = func() error {
		if server < 0 {
			return nil
		}
		err := errors.Join(unix.Unmount(dir, unix.MNT_DETACH), unix.Close(server)) // who waits gets an error
		server = -1
		return err
	}
	p.t.Cleanup(func() { _ = end() })
	return begin, end
}

// keepsAddressLock returns the acts between which somebody holds the lock of the addresses of the second runtime's network, for which
// its plugin waits.
func (p *patient) keepsAddressLock() (take, leave func() error) {
	var lock *os.File
	take = func() error {
		found, err := filepath.Glob(filepath.Join(p.second.Dir, "cni", "ipam", "*", "lock"))
		if err != nil || len(found) != 1 {
			return fmt.Errorf("not one lock of addresses: %q, %v", found, err)
		}
		if lock, err = os.Open(found[0]); err != nil {
			return err
		}
		return unix.Flock(int(lock.Fd()), unix.LOCK_EX)
	}
	leave = func() error { return lock.Close() }
	p.t.Cleanup(func() { _ = lock.Close() }) // it fails if that was done
	return take, leave
}

// crashesSecond kills the second runtime, and starts it again as systemd does.
func (p *patient) crashesSecond() error {
	if err := p.second.Kill(); err != nil {
		return err
	}
	time.Sleep(3 * time.Second)
	return p.second.Start(p.t.Context())
}
