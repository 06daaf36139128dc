package why_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/criproxy/criproxy/hook/plugin"
	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// This is the eleventh set of nodes. Whoever wrote it had read no rule of why, and none of its answers. Its pods have the names
// of rivers, so that no pattern matches a name.

// eleventhSet is the eleventh set of nodes.
var eleventhSet = set{
	name: "eleventh", situations: (*patient).makeEleventhSituations,
	first: func() []*corev1.Pod {
		return []*corev1.Pod{
			pod("idle", "sleep"), onSecond(pod("aged", "sleep"), "testbed/app:1"),
			pod("oder", "sleep"), pod("meuse", "sleep"), pod("loire", "sleep"),
		}
	},
}

// Two nodes, with 5 and 30 pods, as in TestWhyOnASecondSetOfNodes. It takes ten minutes with the start of the nodes: use
// -timeout 20m, and CRIPROXY_TESTBED_RACE=off. -record and -acts do the same as there. The cgroups must be of version 1.
func TestWhyOnAnEleventhSetOfNodes(t *testing.T) { examine(t, eleventhSet) }

// makeEleventhSituations returns what happens on a node: first what fails when a pod starts, several at a time; then what is wrong
// with pods that run, and what people do besides kubelet; at last what is wrong with criproxy's plugins and configuration, and
// with the second runtime's socket.
//
// A runtime's own error may stand in any answer, see acts_test.go. Faults are repaired as in the
// fifth. What runc and the CNI plugin are made to say are errors that people have reported.
func (p *patient) makeEleventhSituations() []*situation {
	runcDir := filepath.Join(p.dir, "runc.d") // a file of it is for one pod, as in the sixth set
	require.NoError(p.t, os.MkdirAll(runcDir, 0o755))
	require.NoError(p.t, writes(p.broken(), fmt.Sprintf("for each in %s/*; do [ -e \"$each\" ] && . \"$each\"; done\n", runcDir))())
	ofRunc := func(pod string) string { return filepath.Join(runcDir, pod) }
	hooks, yaml := p.allowsPlugins()
	configures := func(more string) func() error { return func() error { return p.proxy.Configure(yaml + more) } }

	p.lapsed(p.second, "lapsed.test")
	p.badRegistry(p.runtime, "snail.test", func(_ http.ResponseWriter, r *http.Request) { // it never answers
		select {
		case <-r.Context().Done():
		case <-time.After(time.Minute):
		}
	})

	longNamed := withHostPath(onSecond(pod("isar", "sleep"), "testbed/app:1"), filepath.Join(p.t.TempDir(), strings.Repeat("backup-of-", 32)), corev1.HostPathUnset)
	classed := onSecond(pod("neckar", "sleep"), "testbed/app:1")
	classed.Annotations["blockio.resources.beta.kubernetes.io/pod"] = "bulk"
	wordy := pod("saale", "sleep")
	wordy.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "SETTINGS", Value: strings.Repeat("setting=1;", 15000)}} // Linux allows 128 KiB
	gated := pod("spree", "sleep")
	gated.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example.test/balanced"}}
	job := pod("drina", "wait", "6s", "then", "exit", "3")
	job.Spec.RestartPolicy = corev1.RestartPolicyNever
	terminal := onSecond(pod("morava", "sleep"), "testbed/app:1")
	terminal.Spec.Containers[0].Stdin, terminal.Spec.Containers[0].TTY = true, true
	crowded := slowlyProbed(onSecond(pod("kolyma", "sleep"), "testbed/app:1"), "0s", 10)
	crowded.Spec.Containers[0].ReadinessProbe.PeriodSeconds = 5

	plugSteward, unplugSteward := p.plugs(hooks, plugin.Plugin{
		Name: "steward", PreCreateContainer: func(_ context.Context, c *plugin.Container) (*plugin.ContainerAnswer, error) {
			if !strings.HasPrefix(c.GetPodMeta().GetName(), "tisza-") {
				return nil, nil
			}
			answer := plugin.Echo(c)
			answer.ContainerResources.CpuQuota = 2 // processors, it thinks; but they are microseconds, and Linux wants a thousand
			return answer, nil
		},
	})
	plugNotary, unplugNotary := p.plugs(hooks, plugin.Plugin{
		Name: "notary", PreCreateContainer: func(ctx context.Context, c *plugin.Container) (*plugin.ContainerAnswer, error) {
			if strings.HasPrefix(c.GetPodMeta().GetName(), "douro-") {
				select {
				case <-ctx.Done():
				case <-time.After(10 * time.Second):
				}
			}
			return nil, nil
		},
	})
	warden := filepath.Join(hooks, "warden.json")
	registration, err := json.Marshal(map[string]any{
		"remote-endpoint": filepath.Join(p.proxy.Dir, "warden.sock"), "failure-policy": "Fail", "runtime-hooks": []string{"PreRunPodSandbox"},
	})
	require.NoError(p.t, err)
	listen, listenNoMore := p.watchesEvents()
	squat, leave := p.squats()
	reader := filepath.Join(p.proxy.Dir, "reader.sock")
	var processes, freezer, logs string // what an act has changed, for the act that repairs it
	p.t.Cleanup(func() {                // all fail if that was done
		_ = os.WriteFile(processes, []byte("max"), 0o644)
		_ = os.WriteFile(freezer, []byte("THAWED"), 0o644)
		if logs != "" {
			_ = unix.Unmount(logs, unix.MNT_DETACH)
		}
	})
	const manyCalls = `as many calls|maxCalls|resource ?exhausted|too many calls|(its|the|a) (limit|bound)|calls? (are|is|were|was)? ?(at once|under way)|refus|reject`

	return []*situation{
		// What fails when a pod starts.
		{
			name: "certificate-has-expired", pod: "weser", runtime: old, at: seconds(4), claims: "registry",
			says:   `expired|not yet valid|\bclock\b|renew|out of date|no longer valid`,
			denies: `unknown authority|not trusted|distrust|another name|other names|unauthori[sz]ed|pull secret|no space|` + imageAbsent,
			acts:   []act{{0, p.adds(withImage(onSecond(pod("weser", "sleep"), ""), old+"/lapsed.test/testbed/app:1"))}, {seconds(95), p.ends("weser")}},
			asks:   []ask{{seconds(30), lasts}, {seconds(82), lasts}, {seconds(126), over}},
		},
		{
			name: "volume-has-too-long-a-name", pod: "isar", runtime: old, at: seconds(6), claims: "file memory",
			says:   `name (is )?too long|ENAMETOOLONG|\blong\b.*\b(name|path)|\b(name|path)\b.*\blong|volume|\bmount|host ?path|\bstat\b`,
			denies: `no such file|not a directory|(path|volume|folder|directory) (does not|doesn't) exist|permission|symbolic|` + programAbsent + "|" + outOfMemory,
			acts:   []act{{0, p.adds(longNamed)}, {seconds(95), p.ends("isar")}},
			asks:   []ask{{seconds(33), lasts}, {seconds(83), lasts}, {seconds(129), over}},
		},
		{
			name: "class-of-disk-traffic-unknown", pod: "neckar", runtime: old, at: seconds(8), claims: "disk file memory", // the runtime was given no classes
			says:   `block ?i/?o|blkio|\bbulk\b|\bclass`,
			denies: `no space|\bdisks? (is|was|are|were|has|of)|runtime ?class|unauthori[sz]ed|\bcni\b|` + programAbsent + "|" + outOfMemory,
			acts:   []act{{0, p.adds(classed)}, {seconds(95), p.ends("neckar")}},
			asks:   []ask{{seconds(36), lasts}, {seconds(84), lasts}, {seconds(132), over}},
		},
		{
			name: "bus-of-the-system-is-down", pod: "garonne", runtime: primary, at: seconds(10), claims: "file memory", // runc asks systemd for cgroups
			says: `d-?bus|systemd|system_bus|cgroup`,
			denies: `\bcni\b|(registry|network|image) (is|was|does|did)|pull secret|unreachable|(primary|containerd) (refuse|is down|is gone)|` +
				programAbsent + "|" + outOfMemory,
			acts: []act{
				{0, both(p.runcRefusesSandbox(ofRunc("garonne"), "garonne", "runc create failed: unable to start container process: "+
					"unable to apply cgroup configuration: failed to connect to dbus (hint: for rootless containers, maybe you need to install "+
					"dbus-user-session package, see https://rootlesscontaine.rs/getting-started/common/login/): "+
					"dial unix /run/dbus/system_bus_socket: connect: connection refused"), p.adds(pod("garonne", "sleep")))},
				{seconds(58), removes(ofRunc("garonne"))}, {seconds(98), p.ends("garonne")},
			},
			asks: []ask{{seconds(49), lasts}, {seconds(93), over}, {seconds(145), over}},
		},
		{
			name: "profile-not-loaded", pod: "dordogne", runtime: primary, at: seconds(12), claims: "file memory", // of AppArmor
			says:   `apparmor|profile|/attr/`,
			denies: `seccomp|selinux|volume|\bcni\b|no space|` + programMissing + "|" + outOfMemory,
			acts: []act{
				{0, both(p.runcFails(runcDir, "dordogne", "runc create failed: unable to start container process: error during container init: "+
					"unable to apply apparmor profile: apparmor failed to apply profile: write /proc/self/attr/apparmor/exec: no such file or directory"),
					p.adds(pod("dordogne", "sleep")))},
				{seconds(95), p.ends("dordogne")},
			},
			asks: []ask{{seconds(39), lasts}, {seconds(85), lasts}, {seconds(135), over}},
		},
		{
			name: "bridge-is-full", pod: "moselle", runtime: primary, at: seconds(14), claims: "network", // a bridge of Linux has 1023 ports
			says:   `exchange full|EXFULL|bridge|plugin|\bcni\b|network`,
			denies: addressesOut + `|\bdisk|no space|inode|\bimages?\b|used up .*address`,
			acts: []act{
				{0, both(p.pluginFails("moselle", `failed to connect "veth5e1f9a03" to bridge cni0: exchange full`), p.adds(pod("moselle", "sleep")))},
				{seconds(55), removes(filepath.Join(p.cni, "ADD-moselle"))}, {seconds(96), p.ends("moselle")},
			},
			asks: []ask{{seconds(30), lasts}, {seconds(50), lasts}, {seconds(91), over}, {seconds(127), over}},
		},
		{
			name: "plugin-mistakes-the-unit", pod: "tisza", runtime: primary, at: seconds(16), claims: "file memory", // a quota of 2 µs
			says: `plugin|steward|quota|\bcfs|\bcpu\b|invalid argument`,
			denies: `(above|higher than|larger than|greater than|exceeds?) (that of |the )?(quota|limit|pod)|sysctl|selinux|post-?start|pre-?stop|\bcni\b|` +
				programAbsent + "|" + outOfMemory,
			everyone: `steward.*\b(late|answer\w*|slow)`, // it is asked about each pod
			acts:     []act{{0, both(plugSteward, p.adds(pod("tisza", "sleep")))}, {seconds(95), both(p.ends("tisza"), unplugSteward)}},
			asks:     []ask{{seconds(43), lasts}, {seconds(87), lasts}, {seconds(139), over}},
		},
		{
			name: "environment-too-long", twin: true, pod: "saale", runtime: primary, at: seconds(18), claims: "file", // it starts, and ends
			says:   `exec|argument|environment|too long|exit|crash|restart|again|back-?off|ended`,
			denies: `no such file|not found|missing|permission|` + outOfMemory,
			acts:   []act{{0, p.adds(wordy)}, {seconds(95), p.ends("saale")}},
			asks:   []ask{{seconds(47), either}, {seconds(88), either}, {seconds(143), either}},
		},
		{
			name: "readiness-gate-stays-closed", twin: true, pod: "spree", runtime: primary, at: seconds(20), // that is no call
			acts: []act{{0, p.adds(gated)}, {seconds(95), p.ends("spree")}},
			asks: []ask{{seconds(49), either}, {seconds(89), either}},
		},
		{
			name: "job-fails", twin: true, pod: "drina", runtime: primary, at: seconds(22), // and nobody tries it again
			says:   `exit|fail|code|ended|\b3\b`,
			denies: `restart|crash|hang|hung|` + outOfMemory,
			acts:   []act{{0, p.adds(job)}, {seconds(97), p.ends("drina")}},
			asks:   []ask{{seconds(34), either}, {seconds(90), either}},
		},
		{
			name: "wants-a-terminal", twin: true, pod: "morava", runtime: old, at: seconds(24), // and gets one
			acts: []act{{0, p.adds(terminal)}, {seconds(95), p.ends("morava")}},
			asks: []ask{{seconds(52), either}, {seconds(91), either}},
		},
		{
			name: "plugin-is-late", twin: true, pod: "douro", runtime: primary, at: seconds(27), claims: "slow", // and may be ignored
			says:     `plugin|notary|\bhook|\blate\b|slow|CreateContainer`,
			denies:   `refus|reject|(does|did) not start|\bcni\b|post-?start`,
			everyone: `notary`,
			acts:     []act{{0, both(plugNotary, p.adds(pod("douro", "sleep")))}, {seconds(66), unplugNotary}, {seconds(95), p.ends("douro")}},
			asks:     []ask{{seconds(14), either}, {seconds(54), either}, {seconds(92), either}},
		},

		// What is wrong with pods that run, and what people do besides kubelet.
		{
			name: "probe-cannot-fork", pod: "kolyma", runtime: old, at: seconds(162), claims: "probe file memory", // its pod has as many processes as it may
			says: `\bpids?\b|process|\bfork|clone|stage-|temporarily|EAGAIN|thread|setns|\brunc\b|oci runtime|(exec\w*|probe)\b.*(fail|error|\bnot\b|start)`,
			denies: `tim(e|ed)[ -]?out|longer than|paus(ed|ing)|frozen|shim (is|was|did|died|does)|(program|command|binary) (is missing|does not exist)|\bcni\b|` +
				outOfMemory,
			acts: []act{
				{seconds(-45), p.adds(crowded)},
				{0, func() error {
					dir, _, err := p.cgroupOnSecond("pids", "kolyma")
					if err != nil {
						return err
					}
					processes = filepath.Join(dir, "pids.max")
					return os.WriteFile(processes, []byte("1"), 0o644)
				}},
				{seconds(62), func() error { return os.WriteFile(processes, []byte("max"), 0o644) }}, {seconds(102), p.ends("kolyma")},
			},
			asks: []ask{{seconds(28), lasts}, {seconds(57), lasts}, {seconds(96), over}, {seconds(134), over}},
		},
		{
			name: "frozen-and-deleted", pod: "irtysh", runtime: old, at: seconds(165), claims: "grace slow runtime", // by who wanted to look at it
			says: `grace period|\bkill|froze|freez|paus|StopContainer|` +
				`(stop\w*|end\w*|terminat\w*|remov\w*|delet\w*)\b.*(under way|\bnot\b|still|hang|hung|since|wait)`,
			denies: `old\.io (hangs|hung|is (frozen|silent|gone|away|down))|\bcni\b|` + outOfMemory,
			acts: []act{
				{seconds(-42), p.adds(onSecond(pod("irtysh", "sleep"), "testbed/app:1"))},
				{0, func() error {
					dir, _, err := p.cgroupOnSecond("freezer", "irtysh")
					if err != nil {
						return err
					}
					freezer = filepath.Join(dir, "freezer.state")
					return both(writes(freezer, "FROZEN"), p.ends("irtysh"))()
				}},
				{seconds(68), func() error { return os.WriteFile(freezer, []byte("THAWED"), 0o644) }},
			},
			asks: []ask{{seconds(30), lasts}, {seconds(63), lasts}, {seconds(98), over}, {seconds(118), over}},
		},
		{
			name: "logs-turn-read-only", pod: "limpopo", runtime: old, at: seconds(168), claims: "disk file memory",
			says: `read-?only|EROFS|\blogs?\b|file ?system`,
			denies: `(disk|root|file ?system) of (old\.io|containerd)|(old\.io|containerd)('s)? (disk|file ?system|root)|no space|(is|was) full|inode|` +
				programAbsent + "|" + outOfMemory,
			acts: []act{
				{seconds(-43), p.adds(onSecond(pod("limpopo", "sleep"), "testbed/app:1"))},
				{0, func() error { // its program ends, and kubelet starts it again
					_, pid, err := p.cgroupOnSecond("pids", "limpopo")
					if err != nil {
						return err
					}
					if logs, err = p.podLogsOf("limpopo"); err != nil {
						return err
					}
					return both(covers(logs), func() error { return unix.Kill(pid, unix.SIGTERM) })()
				}},
				{seconds(80), func() error {
					return both(func() error { return unix.Unmount(logs, unix.MNT_DETACH) }, p.ends("limpopo"))()
				}},
			},
			asks: []ask{{seconds(38), lasts}, {seconds(74), lasts}, {seconds(116), over}},
		},
		{
			name: "person-takes-memory-in-vain", twin: true, pod: "oder", runtime: primary, at: seconds(172), claims: "memory", // as it is in use
			says:     byHand + `|UpdateContainerResources|memory|busy`,
			everyone: byHand + `|UpdateContainerResources`,
			denies:   `killed|restart|(ran|run) out of memory`,
			acts: []act{{0, func() error {
				id, _, err := p.process("oder")
				if err != nil {
					return err
				}
				for range 3 {
					if p.ctl("update", "--memory", "8192", id) == nil {
						return errors.New("the program makes do with two pages of memory")
					}
				}
				return nil
			}}},
			asks: []ask{{seconds(14), either}, {seconds(56), either}},
		},
		{
			name: "person-wants-another-handler", twin: true, pod: "okavango", runtime: primary, at: seconds(175), // it is no pod of kubelet's
			says:     byHand + `|\bkata\b|handler`,
			everyone: byHand,
			acts: []act{{0, func() error {
				file := filepath.Join(p.dir, "okavango.json")
				text, err := json.Marshal(p.runtime.PodConfig("okavango-" + p.kubelet.NodeName))
				if err == nil {
					err = os.WriteFile(file, text, 0o644)
				}
				for i := 0; err == nil && i < 3; i++ {
					if p.ctl("runp", "--runtime", "kata", file) == nil {
						err = errors.New("there is such a handler")
					}
				}
				return err
			}}},
			asks: []ask{{seconds(16), either}, {seconds(58), either}},
		},
		{
			name: "container-removed-by-hand", twin: true, pod: "meuse", runtime: primary, at: seconds(178), claims: "grace", // and kubelet makes another
			says:     byHand + `|(Stop|Remove)Container|137|\bkill|exit|restart|again|replac|anew`,
			everyone: byHand,
			denies:   outOfMemory,
			acts: []act{{0, func() error {
				id, _, err := p.process("meuse")
				if err != nil {
					return err
				}
				return p.ctl("rm", "-f", id)
			}}},
			asks: []ask{{seconds(18), either}, {seconds(60), either}},
		},
		{
			name: "agent-may-only-read", twin: true, pod: "loire", runtime: primary, at: seconds(181), // so criproxy refuses its other calls
			says:     byHand + `|permission ?denied|access list|does not allow|not allowed|read-?only|StopContainer|reader\.sock`,
			everyone: byHand + `|permission ?denied|access list|reader\.sock`,
			denies:   `kubelet (is|was|may|cannot|has)|file ?system`,
			acts: []act{
				{0, func() error {
					if err := configures("listeners:\n- path: " + reader + "\n  access:\n  - methods: [read-only]\n")(); err != nil {
						return err
					}
					return p.stopsInVain(reader, "loire")
				}},
				{seconds(40), configures("")},
			},
			asks: []ask{{seconds(20), either}, {seconds(62), either}},
		},
		{
			name: "person-gives-up-a-pull", twin: true, runtime: primary, at: seconds(184), claims: "registry slow", // as its registry says nothing
			says:     byHand + `|cancel|gave up|snail\.test|PullImage`,
			everyone: byHand,
			denies:   `kubelet (is|was|gave|cancel|has)|unauthori[sz]ed|certificate|refused|no space|` + imageAbsent,
			acts: []act{{0, func() error {
				ctx, stop := context.WithTimeout(p.t.Context(), 4*time.Second)
				defer stop()
				err := host.Command(ctx, p.crictl, "-t", "30s", "-r", p.proxy.Endpoint(), "-i", p.proxy.Endpoint(), "pull", "snail.test/testbed/app:1").Run()
				if ctx.Err() == nil {
					return fmt.Errorf("the pull has ended by itself: %v", err)
				}
				return nil
			}}},
			asks: []ask{{seconds(22), either}, {seconds(64), either}},
		},

		// What is wrong with criproxy's plugins and configuration, and with the second runtime's socket.
		{
			name: "plugin-that-may-refuse-is-down", pod: "zambezi", runtime: primary, at: seconds(286), claims: "file", // criproxy must ask it
			says:     `plugin|warden|\bhook`,
			everyone: `warden|plugin\w*\b.*(down|gone|not run|not answer|(can|could) ?not|refus)`,
			denies:   `\bcni\b|network plugin|(registry|network|image|runtime) (is|was|does|did)|` + programAbsent + "|" + outOfMemory,
			acts: []act{
				{0, replaces(warden, string(registration))}, {seconds(2), p.adds(pod("zambezi", "sleep"))},
				{seconds(50), removes(warden)}, {seconds(84), p.ends("zambezi")},
			},
			asks: []ask{{seconds(28), lasts}, {seconds(46), lasts}, {seconds(80), over}, {seconds(91), over}},
		},
		{
			name: "one-call-at-a-time", at: seconds(378), claims: "probe", // is all that criproxy may have, and somebody has a stream open
			says:     manyCalls,
			everyone: manyCalls + "|" + byHand + `|GetContainerEvents`,
			denies:   `(rate|pull|memory) limit|no space|registry (is|was)`,
			acts: []act{
				{0, listen}, {seconds(3), configures("listeners:\n- path: " + p.proxy.Socket() + "\n  maxCalls: 1\n")},
				{seconds(46), both(configures(""), listenNoMore)},
			},
			asks: []ask{{seconds(22), lasts}, {seconds(42), lasts}, {seconds(70), over}},
		},
		{
			name: "another-program-has-the-socket", runtime: old, at: seconds(450), claims: "runtime gone slow", // it does not speak gRPC
			says: secondCameBack + `|old\.io .*(not answer|no answer|silent|slow|unreachable|hang|hung)|http|preface|protocol|\bframe|handshake|\bEOF\b|` +
				`(another|other|wrong) (program|server)`,
			everyone: secondCameBack + `|old\.io .*(not answer|no answer|silent|slow|unreachable|hang|hung)|http/?[12]|preface|protocol|\bframe|handshake|\bEOF\b`,
			denies:   `no space|\bcni\b|registry (is|was)|` + outOfMemory,
			acts:     []act{{0, squat}, {seconds(46), leave}},
			asks:     []ask{{seconds(26), lasts}, {seconds(42), lasts}, {seconds(66), over}},
		},
		{
			name: "criproxy-hands-over", twin: true, at: seconds(518), // to a new process of its own, as after an upgrade
			says:     `criproxy|recor`,
			everyone: `criproxy`,
			denies:   `criproxy .*(crash|fail|died|killed|hang|hung)`,
			acts: []act{{0, func() error {
				_, err := p.proxy.HandOver(p.t.Context())
				return err
			}}},
			asks: []ask{{seconds(9), either}},
		},
	}
}

// allowsPlugins makes criproxy ask plugins, which takes another process of it, and returns the folder in which they register and
// criproxy's configuration.
func (p *patient) allowsPlugins() (folder, yaml string) {
	folder = filepath.Join(p.proxy.Dir, "hooks.d")
	yaml = p.proxy.YAML + "hooks: " + folder + "\n"
	require.NoError(p.t, os.Mkdir(folder, 0o755))
	require.NoError(p.t, p.proxy.Configure(yaml))
	gone, err := p.proxy.HandOver(p.t.Context())
	require.NoError(p.t, err)
	require.NoError(p.t, host.Poll(p.t.Context(), "the criproxy before to end", gone))
	return folder, yaml
}

// plugs returns the acts between which a plugin of criproxy runs.
func (p *patient) plugs(folder string, one plugin.Plugin) (plug, unplug func() error) {
	ctx, stop := context.WithCancel(p.t.Context())
	done := make(chan error, 1)
	one.Folder, one.Socket = folder, filepath.Join(p.proxy.Dir, one.Name+".sock")
	plug = func() error {
		go func() { done <- one.Run(ctx) }()
		err := host.Await(p.t.Context(), "a plugin to register", func() error {
			_, err := os.Stat(filepath.Join(folder, one.Name+".json"))
			return err
		})
		time.Sleep(time.Second) // in which criproxy reads its file
		return err
	}
	unplug = func() error {
		stop()
		select {
		case err := <-done:
			return err
		case <-time.After(15 * time.Second):
			return fmt.Errorf("plugin %s did not run, or does not end", one.Name)
		}
	}
	return plug, unplug
}

// lapsed starts a registry whose certificate the runtime trusts, but it has expired, and ends it with the test.
func (p *patient) lapsed(c *runtimes.Containerd, name string) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(p.t, err)
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: now.AddDate(-1, 0, 0), NotAfter: now.AddDate(0, 0, -1), BasicConstraintsValid: true, IsCA: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	made, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(p.t, err)
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{made}, PrivateKey: key}}}
	p.serveTLS(server)
	file := filepath.Join(p.dir, name+".crt")
	require.NoError(p.t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: made}), 0o644))
	p.pullsSafelyFrom(c, name, server.URL, fmt.Sprintf("ca = %q", file))
}

// cgroupOnSecond returns the cgroup of a pod on the second runtime, in the hierarchy of a controller of version 1, and the process
// of the pod's container.
func (p *patient) cgroupOnSecond(controller, pod string) (dir string, pid int, err error) {
	id, err := p.ctr(p.second, "containers", "ls", "-q", fmt.Sprintf(`labels."io.kubernetes.pod.name"==%s-%s,labels."io.cri-containerd.kind"==container`, pod, p.kubelet.NodeName))
	if err != nil {
		return "", 0, err
	}
	if id = strings.TrimSpace(id); !regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(id) {
		return "", 0, fmt.Errorf("not one container of %s: %q", pod, id)
	}
	tasks, err := p.ctr(p.second, "tasks", "ls")
	if err != nil {
		return "", 0, err
	}
	for line := range strings.Lines(tasks) { // ID, process and state
		if words := strings.Fields(line); len(words) > 1 && words[0] == id {
			if pid, err = strconv.Atoi(words[1]); err != nil {
				return "", 0, err
			}
		}
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return "", 0, err
	}
	for line := range strings.Lines(string(text)) { // 4:freezer:/kubelet/podUID/ID
		words := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(words) == 3 && slices.Contains(strings.Split(words[1], ","), controller) {
			return filepath.Join("/sys/fs/cgroup", words[1], filepath.Dir(words[2])), pid, nil
		}
	}
	return "", 0, fmt.Errorf("%s is not in a cgroup of %s", pod, controller)
}

// podLogsOf returns the folder with the logs of the container of a pod.
func (p *patient) podLogsOf(pod string) (string, error) {
	found, err := filepath.Glob(filepath.Join(p.kubelet.Dir, "logs", "testbed_"+pod+"-"+p.kubelet.NodeName+"_*", "app"))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("not one folder with the logs of %s: %q, %v", pod, found, err)
	}
	return found[0], nil
}

// stopsInVain waits for a socket of criproxy, and tries there to stop the container of a pod on the primary, which the socket does
// not allow.
func (p *patient) stopsInVain(socket, pod string) error {
	err := host.Await(p.t.Context(), "the other socket", func() error {
		_, err := os.Stat(socket)
		return err
	})
	if err != nil {
		return err
	}
	id, _, err := p.process(pod)
	if err != nil {
		return err
	}
	for range 3 {
		out, err := host.Command(p.t.Context(), p.crictl, "-t", "10s", "-r", "unix://"+socket, "-i", "unix://"+socket, "stop", id).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "does not allow") {
			return fmt.Errorf("crictl stop: %v: %s", err, out)
		}
	}
	return nil
}

// squats returns the acts between which a server of HTTP has the second runtime's socket, and that runtime does not run.
func (p *patient) squats() (begin, end func() error) {
	server := &http.Server{Handler: http.NotFoundHandler(), ErrorLog: log.New(io.Discard, "", 0)}
	p.t.Cleanup(func() { _ = server.Close() })
	begin = func() error {
		if err := p.second.Terminate(p.t.Context()); err != nil {
			return err
		}
		if err := os.Remove(p.second.Socket()); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		listener, err := net.Listen("unix", p.second.Socket())
		if err != nil {
			return err
		}
		go func() { _ = server.Serve(listener) }()
		return nil
	}
	end = func() error { return errors.Join(server.Close(), p.second.Start(p.t.Context())) }
	return begin, end
}
