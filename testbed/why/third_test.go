package why_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	goruntime "runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/criproxy/criproxy/testbed/runtimes"
)

// This is the third set of nodes. Whoever wrote it had read no rule of why, and none of its answers. Its pods have the names
// of trees, so that no pattern matches a name.

// thirdSet is the third set of nodes.
var thirdSet = set{
	name: "third", situations: (*patient).makeThirdSituations,
	first: func() []*corev1.Pod {
		return []*corev1.Pod{
			pod("idle", "sleep"), onSecond(pod("aged", "sleep"), "testbed/app:1"),
			slowlyProbed(pod("willow", "sleep"), "0s", 10), pod("hazel", "sleep"), pod("linden", "sleep"),
		}
	},
}

// Two nodes, with 5 and 30 pods, as in TestWhyOnASecondSetOfNodes. It takes less than ten minutes: use -timeout 20m, and
// CRIPROXY_TESTBED_RACE=off. -record and -acts do the same as there.
func TestWhyOnAThirdSetOfNodes(t *testing.T) { examine(t, thirdSet) }

// makeThirdSituations returns what happens on a node: first what fails when a pod starts, several at a time; then what
// happens to pods that run; at last what happens to a runtime.
func (p *patient) makeThirdSituations() []*situation {
	p.distrusted(p.runtime, "quay.test")
	p.pullsFrom(p.second, "harbor.test", "http://harbor.invalid") // no such name, by RFC 2606
	p.pushForeign("testbed/tools:1")
	p.push("testbed/ledger:1", func(c *v1.Config) { c.User = "ledger" })
	blob := p.push("testbed/worn:1", func(c *v1.Config) { c.Labels = map[string]string{"worn": "yes"} }).Hex

	var away atomic.Bool // the registry from which the second runtime pulls its sandbox image
	well := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: p.registry.Addr})
	p.badRegistry(p.second, p.registry.Addr, func(w http.ResponseWriter, r *http.Request) {
		if away.Load() {
			http.Error(w, "upstream connect error", http.StatusServiceUnavailable)
			return
		}
		well.ServeHTTP(w, r)
	})

	reversed := pod("birch", "sleep")
	reversed.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: "net.ipv4.ip_local_port_range", Value: "60999 32768"}}}
	forbidden := pod("spruce", "sleep")
	forbidden.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: "net.core.somaxconn", Value: "1024"}}}
	unprobed := pod("elder", "sleep")
	unprobed.Spec.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: runs("/usr/bin/healthcheck")}
	restless := pod("aspen", "sleep")
	restless.Spec.Containers[0].LivenessProbe = &corev1.Probe{ProbeHandler: runs("app", "exit", "1"), InitialDelaySeconds: 8, PeriodSeconds: 4, FailureThreshold: 2}
	noRoot, readOnly := true, true
	rootless := pod("cedar", "sleep")
	rootless.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{RunAsNonRoot: &noRoot}
	halfWell := pod("laurel", "sleep")
	halfWell.Spec.Containers = append(halfWell.Spec.Containers, corev1.Container{
		Name: "cache", Image: image, ImagePullPolicy: corev1.PullIfNotPresent, Args: []string{"write", "/warm", "yes"},
		SecurityContext: &corev1.SecurityContext{ReadOnlyRootFilesystem: &readOnly},
	})
	pipe := filepath.Join(p.t.TempDir(), "pipe") // its reader waits for a writer
	require.NoError(p.t, unix.Mkfifo(pipe, 0o644))
	hooked := withHostPath(onSecond(pod("myrtle", "sleep"), "testbed/app:1"), filepath.Dir(pipe), corev1.HostPathUnset)
	hooked.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: runs("app", "file", "/data/pipe").Exec}}
	preloaded := withImage(pod("olive", "sleep"), registry+"/testbed/other:1")
	preloaded.Spec.Containers[0].ImagePullPolicy = corev1.PullNever

	killed, slow := filepath.Join(p.cni, "ADD-juniper"), filepath.Join(p.cni, "ADD-rowan")
	undying := 0 // the pid of the process of hazel

	return []*situation{
		// What fails when a pod starts.
		{
			name: "certificate-distrusted", pod: "alder", runtime: primary, at: seconds(4), claims: "registry",
			says:   `x509|certificate|\btls\b|unknown authority|trust`,
			denies: `unauthori[sz]ed|pull secret|(image|tag) (does not|doesn't) exist|no such (image|tag)`,
			acts:   []act{{0, p.adds(withImage(pod("alder", "sleep"), "quay.test/testbed/app:1"))}, {seconds(95), p.ends("alder")}},
			asks:   []ask{{seconds(30), lasts}, {seconds(86), lasts}, {seconds(126), over}},
		},
		{
			name: "image-for-other-machines", pod: "acacia", runtime: old, at: seconds(6), claims: "registry",
			says:   `platform|architecture|arm64|amd64|no match`,
			denies: `unauthori[sz]ed|pull secret|(image|tag) (does not|doesn't) exist|no such (image|tag)|mistyped|misspel`,
			acts:   []act{{0, p.adds(onSecond(pod("acacia", "sleep"), "testbed/tools:1"))}, {seconds(95), p.ends("acacia")}},
			asks:   []ask{{seconds(33), lasts}, {seconds(85), lasts}, {seconds(129), over}},
		},
		{
			name: "registry-has-no-name", pod: "ash", runtime: old, at: seconds(8), claims: "registry network",
			says:   `no such host|\bdns\b|look ?up|(host|domain) ?name|name .*resol|resolver`,
			denies: `unauthori[sz]ed|pull secret|certificate|(image|tag) (does not|doesn't) exist|no such (image|tag)`,
			acts:   []act{{0, p.adds(withImage(onSecond(pod("ash", "sleep"), ""), old+"/harbor.test/testbed/app:1"))}, {seconds(95), p.ends("ash")}},
			asks:   []ask{{seconds(36), lasts}, {seconds(84), lasts}, {seconds(132), over}},
		},
		{
			name: "user-unknown", pod: "beech", runtime: old, at: seconds(10),
			says: `\busers?\b|passwd`,
			acts: []act{{0, p.adds(onSecond(pod("beech", "sleep"), "testbed/ledger:1"))}, {seconds(95), p.ends("beech")}},
			asks: []ask{{seconds(39), lasts}, {seconds(83), lasts}, {seconds(135), over}},
		},
		{
			name: "sysctl-refused-by-kernel", pod: "birch", runtime: primary, at: seconds(12),
			says: `sysctl|port_range|invalid argument`,
			acts: []act{{0, p.adds(reversed)}, {seconds(95), p.ends("birch")}},
			asks: []ask{{seconds(42), lasts}, {seconds(82), lasts}, {seconds(138), over}},
		},
		{
			name: "probe-lacks-its-program", pod: "elder", runtime: primary, at: seconds(14), claims: "probe file",
			says: `no such file|not found|missing|(does not|doesn't) exist|executable|(can|could)( ?not|n't) (be )?(run|start|exec)|exec failed`,
			acts: []act{{0, p.adds(unprobed)}, {seconds(95), p.ends("elder")}},
			asks: []ask{{seconds(45), lasts}, {seconds(81), lasts}, {seconds(141), over}},
		},
		{
			name: "must-not-be-root", twin: true, pod: "cedar", runtime: primary, at: seconds(16), // kubelet refuses, and asks no runtime
			says: `\broot\b|no container|(not|never) (been )?(asked|created|started)|kubelet (has|did|does)`,
			acts: []act{{0, p.adds(rootless)}, {seconds(95), p.ends("cedar")}},
			asks: []ask{{seconds(48), either}, {seconds(144), either}},
		},
		{
			name: "restarted-by-liveness", twin: true, pod: "aspen", runtime: primary, at: seconds(18), claims: "probe",
			says: `probe|liveness|restart|exit`,
			acts: []act{{0, p.adds(restless)}, {seconds(95), p.ends("aspen")}},
			asks: []ask{{seconds(51), either}, {seconds(90), either}, {seconds(147), either}},
		},
		{
			name: "one-of-two-crashes", twin: true, pod: "laurel", runtime: primary, at: seconds(20), // as its root is read-only
			says: `crash|restart|exit|again`,
			acts: []act{{0, p.adds(halfWell)}, {seconds(95), p.ends("laurel")}},
			asks: []ask{{seconds(54), either}, {seconds(89), either}},
		},
		{
			name: "sysctl-refused-by-kubelet", twin: true, pod: "spruce", at: seconds(22),
			says: `sysctl|kubelet (has|did|does)|(not|never) (been )?asked|no sandbox|no calls?`,
			acts: []act{{0, p.adds(forbidden)}, {seconds(95), p.ends("spruce")}},
			asks: []ask{{seconds(57), either}},
		},
		{
			name: "network-plugin-killed", pod: "juniper", runtime: primary, at: seconds(24), claims: "network memory", // people guess why
			says:   `plugin|\bcni\b|killed`,
			denies: `no (more |free )?(ip )?address|not ready|refused`,
			acts: []act{
				{0, both(writes(killed, "kill -9 $$\n"), p.adds(pod("juniper", "sleep")))},
				{seconds(50), removes(killed)}, {seconds(90), p.ends("juniper")},
			},
			asks: []ask{{seconds(40), lasts}, {seconds(80), over}, {seconds(130), over}},
		},
		{
			name: "network-slow-in-time", twin: true, pod: "rowan", runtime: primary, at: seconds(26),
			acts: []act{{0, both(writes(slow, "sleep 12\n"), p.adds(pod("rowan", "sleep")))}, {seconds(92), p.ends("rowan")}},
			asks: []ask{{seconds(9), either}, {seconds(58), either}},
		},

		// What happens to pods that run.
		{
			name: "post-start-hangs", pod: "myrtle", runtime: old, at: seconds(175), claims: "slow",
			says: `post-?start|\bhooks?\b|(exec\w*|command|call)\b.*(under way|\bnot\b|hang|hung|still|wait|since|for \d)`,
			acts: []act{
				{0, p.adds(hooked)},
				{seconds(75), func() error {
					file, err := os.OpenFile(pipe, os.O_WRONLY|unix.O_NONBLOCK, 0) // it fails if nobody reads
					if err != nil {
						return err
					}
					return file.Close()
				}},
				{seconds(105), p.ends("myrtle")},
			},
			asks: []ask{{seconds(32), lasts}, {seconds(64), lasts}, {seconds(97), over}, {seconds(135), over}},
		},
		{
			name: "process-cannot-be-killed", pod: "hazel", runtime: primary, at: seconds(178), claims: "grace slow runtime", // as on NFS
			says: `grace period|\bkill|uninterruptible|` +
				`(StopContainer|stop\w*|end\w*|terminat\w*|remov\w*|delet\w*)\b.*(under way|\bnot\b|still|hang|hung|since|wait)`,
			denies: `\b(primary|containerd) (hangs|hung|is (frozen|silent|gone|away|down))`,
			acts: []act{
				{0, func() (err error) {
					var id string
					if id, undying, err = p.process("hazel"); err != nil {
						return err
					}
					swallows := fmt.Sprintf("case \" $* \" in *' kill '*%s*) exit 0 ;; esac\n", id)
					return both(writes(p.broken(), swallows), p.ends("hazel"))()
				}},
				{seconds(72), both(removes(p.broken()), func() error { return unix.Kill(undying, unix.SIGKILL) })},
			},
			asks: []ask{{seconds(28), lasts}, {seconds(66), lasts}, {seconds(100), over}, {seconds(165), over}},
		},
		{
			name: "container-paused", pod: "willow", runtime: primary, at: seconds(181), claims: "probe",
			says: `paus|freez|frozen`,
			acts: []act{
				{0, p.onTask("pause", "willow")}, {seconds(62), p.onTask("resume", "willow")}, {seconds(102), p.ends("willow")},
			},
			asks: []ask{{seconds(30), lasts}, {seconds(58), lasts}, {seconds(94), over}, {seconds(138), over}},
		},
		{
			name: "preloaded-image-removed", pod: "olive", runtime: primary, at: seconds(184),
			says: `image .*(\bnot\b|no longer|never|missing|gone|absent|removed|deleted|lack|without)|(remov|delet)\w* .*image|` +
				`RemoveImage|\brmi\b|never pull|(lacks|without) .*image`,
			acts: []act{
				{seconds(-45), func() error { return errors.Join(p.ctl("pull", registry+"/testbed/other:1"), p.adds(preloaded)()) }},
				{0, func() error { // its program ends, and kubelet starts it again
					_, pid, err := p.process("olive")
					if err == nil {
						err = p.ctl("rmi", registry+"/testbed/other:1")
					}
					if err != nil {
						return err
					}
					return unix.Kill(pid, unix.SIGTERM)
				}},
				{seconds(75), func() error { return p.ctl("pull", registry+"/testbed/other:1") }}, {seconds(112), p.ends("olive")},
			},
			asks: []ask{{seconds(40), lasts}, {seconds(70), lasts}, {seconds(106), over}, {seconds(141), over}},
		},
		{
			name: "image-store-damaged", pod: "walnut", runtime: primary, at: seconds(187),
			says: `\bblob|content\b|digest|unpack|corrupt|damage|incomplete|` +
				`(image|snapshot|layer)\b.*(broken|missing|lacks|not (complete|there|found))`,
			denies: `unauthori[sz]ed|(image|tag) (does not|doesn't) exist|no such (image|tag)|mistyped|misspel`,
			acts: []act{
				{seconds(-30), func() error { return p.ctl("pull", registry+"/testbed/worn:1") }},
				{0, both(removes(filepath.Join(p.runtime.Dir, "root/io.containerd.content.v1.content/blobs/sha256", blob)),
					p.adds(withImage(pod("walnut", "sleep"), registry+"/testbed/worn:1")))},
				{seconds(95), p.ends("walnut")},
			},
			asks: []ask{{seconds(43), lasts}, {seconds(80), lasts}, {seconds(132), over}},
		},
		{
			name: "sandbox-image-lost", pod: "maple", runtime: old, at: seconds(190), claims: "registry",
			says:     `(sandbox|pause) image|testbed/pause`,
			everyone: `(sandbox|pause) image|testbed/pause`,
			acts: []act{
				{0, func() error {
					away.Store(true)
					_, err := p.ctr(p.second, "images", "rm", p.second.SandboxImage)
					return errors.Join(err, p.adds(onSecond(pod("maple", "sleep"), "testbed/app:1"))())
				}},
				{seconds(54), func() error { away.Store(false); return nil }}, {seconds(100), p.ends("maple")},
			},
			asks: []ask{{seconds(46), lasts}, {seconds(92), over}, {seconds(144), over}},
		},
		{
			name: "replaced-by-its-namesake", twin: true, pod: "poplar", runtime: primary, at: seconds(193),
			acts: []act{
				{seconds(-28), p.adds(pod("poplar", "sleep"))},
				{0, p.adds(withImage(pod("poplar", "tick", "1s"), registry+"/testbed/app:2"))}, {seconds(60), p.ends("poplar")},
			},
			asks: []ask{{seconds(6), either}, {seconds(48), either}, {seconds(90), either}},
		},
		{
			name: "person-lacks-a-shell", twin: true, pod: "linden", runtime: primary, at: seconds(196), claims: "file",
			says: `crictl|by hand|(another|other|different) client|not (by )?kubelet|bash`,
			acts: []act{{0, func() error {
				id, _, err := p.process("linden")
				if err != nil {
					return err
				}
				for range 3 {
					if p.ctl("exec", "--sync", id, "bash") == nil {
						return errors.New("there is a shell")
					}
				}
				return nil
			}}},
			asks: []ask{{seconds(12), either}, {seconds(50), either}},
		},
		{
			name: "session-stays-open", twin: true, pod: "linden", runtime: primary, at: seconds(215), claims: "file",
			says: `crictl|by hand|(another|other|different) client|not (by )?kubelet|bash`, // it was there before
			acts: []act{{0, func() error {
				go func() {
					ctx, stop := context.WithTimeout(p.t.Context(), 100*time.Second)
					defer stop()
					_, code, err := p.kubelet.Exec(ctx, "linden", "app", "app", "sleep", "80s")
					p.say("on %d: the session has ended with %d: %v", p.pods, code, err)
				}()
				return nil
			}}},
			asks: []ask{{seconds(62), either}, {seconds(105), either}},
		},

		// What happens to a runtime.
		{
			name: "no-file-left-to-open", pod: "sequoia", runtime: old, at: seconds(340), claims: "network slow runtime",
			says:     `too many open files|file (descriptor|handle)s?|open files|EMFILE|ulimit|NOFILE`,
			everyone: `too many open files|file (descriptor|handle)s?|open files|EMFILE|ulimit|NOFILE`,
			acts: []act{
				{0, both(p.limitsFiles(3), p.adds(onSecond(pod("sequoia", "sleep"), "testbed/app:1")))},
				{seconds(55), p.limitsFiles(65536)}, {seconds(92), p.ends("sequoia")},
			},
			asks: []ask{{seconds(28), lasts}, {seconds(50), lasts}, {seconds(84), over}, {seconds(120), over}},
		},
		{
			name: "runtime-blinks", twin: true, runtime: old, at: seconds(466), claims: "runtime slow",
			says:     `old\.io .*(slow|silent|not answer|no answer|froze|late|paus|stall|under way)`,
			everyone: `old\.io .*(slow|silent|not answer|no answer|froze|late|paus|stall|under way)`,
			acts: []act{{0, func() error { // one act, so that no other comes between
				defer time.Sleep(time.Second)
				if err := p.second.Freeze(); err != nil {
					return err
				}
				time.Sleep(5 * time.Second)
				return p.second.Thaw()
			}}},
			asks: []ask{{seconds(10), either}, {seconds(45), either}},
		},
	}
}

// runs returns the handler that runs a command in a container.
func runs(command ...string) corev1.ProbeHandler {
	return corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: command}}
}

// push puts an image into the registry that is testbed/app:1 but for its configuration, and returns the digest of that.
func (p *patient) push(image string, change func(*v1.Config)) v1.Hash {
	base := p.pushed("testbed/app:1")
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

// pushForeign puts an index of images into the registry that has none for this machine.
func (p *patient) pushForeign(image string) {
	other := "arm64"
	if goruntime.GOARCH == other {
		other = "amd64"
	}
	index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{
		Add: p.pushed("testbed/app:1"), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: other}},
	})
	require.NoError(p.t, remote.WriteIndex(p.reference(image), index))
}

// pushed returns an image of the registry.
func (p *patient) pushed(image string) v1.Image {
	found, err := remote.Image(p.reference(image))
	require.NoError(p.t, err)
	return found
}

func (p *patient) reference(image string) name.Reference {
	ref, err := name.ParseReference(p.registry.Image(image), name.Insecure)
	require.NoError(p.t, err)
	return ref
}

// distrusted starts a registry whose certificate nobody knows, and ends it with the test.
func (p *patient) distrusted(c *runtimes.Containerd, name string) {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of the runtimes that hang up
	server.StartTLS()
	p.t.Cleanup(server.Close)
	p.pullsFrom(c, name, server.URL)
}

// process returns the container of a pod on the primary, and its process.
func (p *patient) process(pod string) (id string, pid int, err error) {
	id, err = p.ctr(p.runtime, "containers", "ls", "-q", fmt.Sprintf(`labels."io.kubernetes.pod.name"==%s-%s,labels."io.cri-containerd.kind"==container`, pod, p.kubelet.NodeName))
	if err != nil {
		return "", 0, err
	}
	if id = strings.TrimSpace(id); !regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(id) {
		return "", 0, fmt.Errorf("not one container of %s: %q", pod, id)
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

// onTask returns the act that runs a command of ctr on the container of a pod on the primary: pause or resume.
func (p *patient) onTask(command, pod string) func() error {
	return func() error {
		id, _, err := p.process(pod)
		if err == nil {
			_, err = p.ctr(p.runtime, "tasks", command, id)
		}
		return err
	}
}

// limitsFiles returns the act after which the second runtime may open files with numbers below a limit. Those that it has
// open stay.
func (p *patient) limitsFiles(limit uint64) func() error {
	return func() error {
		pid, alive := p.second.PID()
		if !alive {
			return errors.New("the second runtime has ended")
		}
		var have unix.Rlimit
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &have); err != nil {
			return err
		}
		return unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: min(limit, have.Max), Max: have.Max}, nil)
	}
}

// The judge of the third set knows what is false of the nodes.
func TestASituationDeniesWhatWasNotDone(t *testing.T) {
	one := &situation{name: "certificate", pod: "alder", runtime: primary, says: "x509", denies: "no such tag"}
	about := func(text string) verdict {
		return judge([]*situation{one}, "alder", finding{Text: "testbed/alder-node-0a: " + text})
	}
	assert.True(t, about("x509: unknown authority").right)
	assert.NotEmpty(t, about("no such tag, or x509").wrong)
}
