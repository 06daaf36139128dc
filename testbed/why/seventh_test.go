package why_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// This is the seventh set of nodes. Whoever wrote it had read no rule of why, and none of its answers. Its pods have the names
// of musical instruments, so that no pattern matches a name.

// seventhSet is the seventh set of nodes.
var seventhSet = set{
	name: "seventh", situations: (*patient).makeSeventhSituations,
	first: func() []*corev1.Pod {
		return []*corev1.Pod{
			pod("idle", "sleep"), onSecond(pod("aged", "sleep"), "testbed/app:1"),
			pod("harp", "sleep"), pod("viola", "sleep"), pod("fife", "sleep"),
		}
	},
}

// Two nodes, with 5 and 30 pods, as in TestWhyOnASecondSetOfNodes. It takes ten minutes with the start of the nodes: use
// -timeout 20m, and CRIPROXY_TESTBED_RACE=off. -record and -acts do the same as there.
func TestWhyOnASeventhSetOfNodes(t *testing.T) { examine(t, seventhSet) }

// byHand is what may be said when somebody besides kubelet has called the runtimes.
const byHand = `crictl|by hand|(another|other|different|second) client|not (by )?kubelet|(besides|behind|than) kubelet`

// makeSeventhSituations returns what happens on a node: first what fails when a pod starts, several at a time; then what happens
// to pods that run, and what people do besides kubelet; at last what happens to the second runtime and to kubelet.
//
// A runtime's own error may stand in any answer, as in the fourth set: see makeFourthSituations. After a failed pull kubelet waits
// longer each time; so no such fault is repaired before its pod is deleted.
func (p *patient) makeSeventhSituations() []*situation {
	well := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: p.registry.Addr})
	p.badRegistry(p.second, "carousel.test", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.URL.Path, http.StatusTemporaryRedirect) // as behind a proxy that ends TLS
	})
	p.badRegistry(p.runtime, "guarded.test", func(w http.ResponseWriter, _ *http.Request) { // nobody listens where tokens are
		w.Header().Set("WWW-Authenticate", `Bearer realm="http://127.0.0.1:1/token",service="guarded.test",scope="repository:testbed/app:pull"`)
		w.WriteHeader(http.StatusUnauthorized)
	})
	swept := p.push("testbed/brass:1", func(c *v1.Config) { c.Labels = map[string]string{"brass": "yes"} }).Hex
	p.badRegistry(p.second, "thinned.test", func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, swept) { // its garbage collection was wrong
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"errors":[{"code":"BLOB_UNKNOWN","message":"blob unknown to registry"}]}`)
			return
		}
		well.ServeHTTP(w, r)
	})
	var broken atomic.Bool // the servers behind a registry's gateway
	p.badRegistry(p.runtime, "stock.test", func(w http.ResponseWriter, r *http.Request) {
		if broken.Load() {
			http.Error(w, "<html><h1>502 Bad Gateway</h1></html>", http.StatusBadGateway)
			return
		}
		well.ServeHTTP(w, r)
	})
	p.hosts(p.second, "trove.test", "[host.\"https://127.0.0.1:1\"]\n  capabilities = [\"pull\", \"resolve\"]\n  ca = \"/etc/containerd/trove/ca.crt\"\n")
	p.hosts(p.runtime, "mirrored.test", fmt.Sprintf("[host.\"http://127.0.0.1:1\"]\n  capabilities = [\"pull\", \"resolve\"]\n"+
		"[host.\"http://%s\"]\n  capabilities = [\"pull\", \"resolve\"]\n", p.registry.Addr))
	p.push("testbed/hollow:1", func(c *v1.Config) { c.Entrypoint, c.Cmd = nil, nil })
	p.push("testbed/reed:1", func(c *v1.Config) { c.StopSignal = "SIGQIUT" })
	p.push("testbed/string:1", func(c *v1.Config) { c.Labels = map[string]string{"string": "yes"} })
	p.pushWithoutLayerIDs("testbed/drum:1")

	noMode := pod("banjo")
	noMode.Spec.Containers[0].Command = []string{"/etc/passwd"} // a file with mode 0644
	greedy := pod("sitar", "sleep")
	greedy.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1000")}
	folder := p.t.TempDir()
	warming := withHostPath(pod("lyre", "sleep"), folder, corev1.HostPathUnset)
	warming.Spec.Containers[0].StartupProbe = &corev1.Probe{
		ProbeHandler: runs("app", "file", "/data/ready"), PeriodSeconds: 5, FailureThreshold: 30, TimeoutSeconds: 10,
	}
	fresh := withImage(pod("lute", "sleep"), "stock.test/testbed/app:1")
	fresh.Spec.Containers[0].ImagePullPolicy = corev1.PullAlways
	lingers := graceful(pod("gong", "sleep"), 20)
	lingers.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: runs("app", "sleep", "90s").Exec}}

	agentBegins, agentEnds := p.keepsStopping("cello")
	listen, listenNoMore := p.watchesEvents()
	connect, disconnect := p.connects(40)
	foreign := filepath.Join(p.dir, "runc-of-another-machine")
	require.NoError(p.t, os.WriteFile(foreign, []byte("\x7fELF\x02\x01\x01"+strings.Repeat("\x00", 1024)), 0o755))

	return []*situation{
		// What fails when a pod starts.
		{
			name: "registry-redirects-for-ever", pod: "tuba", runtime: old, at: seconds(4), claims: "registry",
			says:   `redirect|\bloop`,
			denies: `unauthori[sz]ed|pull secret|certificate|no space|` + imageAbsent,
			acts:   []act{{0, p.adds(withImage(onSecond(pod("tuba", "sleep"), ""), old+"/carousel.test/testbed/app:1"))}, {seconds(95), p.ends("tuba")}},
			asks:   []ask{{seconds(30), lasts}, {seconds(82), lasts}, {seconds(126), over}},
		},
		{
			name: "token-server-down", pod: "dulcimer", runtime: primary, at: seconds(6), claims: "registry network", // the registry itself works
			says:   `token|\bauthori[sz]|authenticat|refused|127\.0\.0\.1:1\b|(can|could) ?not (be )?(reach|connect)|unreachable`,
			denies: `pull secret|(wrong|invalid|bad|missing|no|expired) credential|credentials? (is|are|was|were) |x509|no space|` + imageAbsent,
			acts:   []act{{0, p.adds(withImage(pod("dulcimer", "sleep"), "guarded.test/testbed/app:1"))}, {seconds(95), p.ends("dulcimer")}},
			asks:   []ask{{seconds(33), lasts}, {seconds(83), lasts}, {seconds(129), over}},
		},
		{
			name: "blob-gone-from-registry", pod: "trombone", runtime: old, at: seconds(8), claims: "registry",
			says:   `\bblobs?\b|content\b|layer|config\b|incomplete|part of|sha256`,
			denies: `unauthori[sz]ed|pull secret|certificate|no space|registry (has|knows) no (such )?(image|tag|testbed)|` + imageAbsent,
			acts:   []act{{0, p.adds(withImage(onSecond(pod("trombone", "sleep"), ""), old+"/thinned.test/testbed/brass:1"))}, {seconds(95), p.ends("trombone")}},
			asks:   []ask{{seconds(36), lasts}, {seconds(84), lasts}, {seconds(132), over}},
		},
		{
			name: "image-names-no-command", pod: "ocarina", runtime: old, at: seconds(10), claims: "file",
			says:   `command|entry ?point|\bcmd\b|program`,
			denies: `no such file|permission|no space|(ran|run) out of memory|` + imageAbsent,
			acts:   []act{{0, p.adds(onSecond(pod("ocarina"), "testbed/hollow:1"))}, {seconds(95), p.ends("ocarina")}},
			asks:   []ask{{seconds(39), lasts}, {seconds(85), lasts}, {seconds(135), over}},
		},
		{
			name: "program-lacks-its-mode", pod: "banjo", runtime: primary, at: seconds(12), claims: "file memory", // nobody ran chmod +x
			says:   `permission|executable|/etc/passwd|chmod|\bmode\b`,
			denies: `no such file|not found|(is|was) missing|(does not|doesn't|did not) exist|apparmor|selinux|` + outOfMemory,
			acts:   []act{{0, p.adds(noMode)}, {seconds(95), p.ends("banjo")}},
			asks:   []ask{{seconds(42), lasts}, {seconds(86), lasts}, {seconds(138), over}},
		},
		{
			name: "authority-file-missing", pod: "clarinet", runtime: old, at: seconds(14), claims: "registry file", // hosts.toml names it
			says:   `\bca\b|ca\.crt|certificat|\bcert\b|hosts\.toml|trust`,
			denies: `unknown authority|expired|unauthori[sz]ed|pull secret|` + programMissing + "|" + imageAbsent,
			acts:   []act{{0, p.adds(withImage(onSecond(pod("clarinet", "sleep"), ""), old+"/trove.test/testbed/app:1"))}, {seconds(95), p.ends("clarinet")}},
			asks:   []ask{{seconds(45), lasts}, {seconds(87), lasts}, {seconds(141), over}},
		},
		{
			name: "image-disagrees-with-itself", pod: "timpani", runtime: primary, at: seconds(16), claims: "registry", // its builder is wrong
			says:   `layer|diff ?ids?|root ?fs|unpack|\bmatch|malformed|config\w* of`,
			denies: `unauthori[sz]ed|pull secret|certificate|no space|(another|other|wrong) (platform|architecture)|` + imageAbsent,
			acts:   []act{{0, p.adds(withImage(pod("timpani", "sleep"), registry+"/testbed/drum:1"))}, {seconds(95), p.ends("timpani")}},
			asks:   []ask{{seconds(47), lasts}, {seconds(88), lasts}, {seconds(143), over}},
		},
		{
			name: "one-mirror-is-down", twin: true, pod: "flute", runtime: primary, at: seconds(18), // and the next one has the image
			acts: []act{{0, p.adds(withImage(pod("flute", "sleep"), "mirrored.test/testbed/app:1"))}, {seconds(95), p.ends("flute")}},
			asks: []ask{{seconds(49), either}, {seconds(89), either}},
		},
		{
			name: "wants-more-than-the-node-has", twin: true, pod: "sitar", at: seconds(20), // kubelet refuses, and asks no runtime
			says: `cpu|resource|admi|kubelet (has|did|does)|(not|never) (been )?(asked|created|started)|no (sandbox|container|calls?)`,
			acts: []act{{0, p.adds(greedy)}, {seconds(95), p.ends("sitar")}},
			asks: []ask{{seconds(51), either}, {seconds(90), either}},
		},
		{
			name: "warms-up", twin: true, pod: "lyre", runtime: primary, at: seconds(22), claims: "probe file", // its startup probe fails until then
			says: `probe|start-?up`,
			acts: []act{
				{0, p.adds(warming)}, {seconds(50), writes(filepath.Join(folder, "ready"), "yes\n")}, {seconds(97), p.ends("lyre")},
			},
			asks: []ask{{seconds(40), either}, {seconds(91), either}},
		},

		// What happens to pods that run, and what people do besides kubelet.
		{
			name: "always-pulls-what-is-there", pod: "lute", runtime: primary, at: seconds(156), claims: "registry", // and so cannot be started again
			says:   `\b50[0-9]\b|bad gateway|unexpected status|upstream|registry .*(is|was|does|did|answer|fail)|server error|unavailable`,
			denies: `unauthori[sz]ed|pull secret|certificate|no space|` + imageAbsent + "|" + outOfMemory,
			acts: []act{
				{seconds(-48), p.adds(fresh)},
				{0, func() error {
					_, pid, err := p.process("lute")
					if err != nil {
						return err
					}
					broken.Store(true)
					return unix.Kill(pid, unix.SIGTERM)
				}},
				{seconds(92), p.ends("lute")},
			},
			asks: []ask{{seconds(31), lasts}, {seconds(80), lasts}, {seconds(125), over}},
		},
		{
			name: "stop-signal-misspelled", twin: true, pod: "bugle", runtime: primary, at: seconds(159), claims: "grace", // it ends with its sandbox
			says:   `signal|SIGQIUT|StopContainer`,
			denies: `(program|process) ignor|uninterruptible`,
			acts: []act{
				{seconds(-45), p.adds(withImage(pod("bugle", "sleep"), registry+"/testbed/reed:1"))}, {0, p.ends("bugle")},
			},
			asks: []ask{{seconds(14), either}, {seconds(48), either}},
		},
		{
			name: "agent-stops-a-container", pod: "cello", runtime: primary, at: seconds(162), // again and again
			says:     byHand + `|agent\b.*stop`,
			everyone: byHand,
			denies:   `\b(program|it) (crash|fail|exit)\w* by itself|` + outOfMemory,
			acts: []act{
				{seconds(-42), p.adds(pod("cello", "sleep"))}, {0, agentBegins}, {seconds(70), agentEnds}, {seconds(104), p.ends("cello")},
			},
			asks: []ask{{seconds(34), either}, {seconds(64), either}, {seconds(98), over}, {seconds(136), over}},
		},
		{
			name: "sandbox-process-killed", pod: "oboe", runtime: primary, at: seconds(165), // again and again; its shim lives
			says: `sandbox|\bpause\b|\bkill|\b137\b|infra`,
			acts: []act{
				{seconds(-39), p.adds(pod("oboe", "sleep"))},
				{0, func() error { return p.killPause("oboe") }},
				{seconds(25), p.killPauseAgain("oboe")}, {seconds(50), p.killPauseAgain("oboe")}, {seconds(75), p.killPauseAgain("oboe")},
				{seconds(112), p.ends("oboe")},
			},
			asks: []ask{{seconds(37), either}, {seconds(66), either}, {seconds(107), over}, {seconds(139), over}},
		},
		{
			name: "ended-container-is-not-let-go", pod: "fife", runtime: primary, at: seconds(171), claims: "grace slow runtime shim file memory",
			says: `grace period|\bkill|busy|\brunc\b|StopContainer|` + // runc's delete fails; containerd tries again, and waits longer each time
				`(stop\w*|end\w*|terminat\w*|remov\w*|delet\w*)\b.*(under way|\bnot\b|still|hang|hung|since|wait)`,
			denies: `\b(primary|containerd) (hangs|hung|is (frozen|silent|gone|away|down))|` + outOfMemory,
			acts: []act{
				{0, func() error {
					id, _, err := p.process("fife")
					if err != nil {
						return err
					}
					refuses := fmt.Sprintf("case \" $* \" in *' delete '*%s*) echo 'unable to remove the cgroup: device or resource busy' >&2; exit 1 ;; esac\n", id)
					return both(writes(p.broken(), refuses), p.ends("fife"))()
				}},
				{seconds(52), removes(p.broken())},
			},
			asks: []ask{{seconds(29), lasts}, {seconds(47), lasts}, {seconds(160), over}},
		},
		{
			name: "client-says-nothing", twin: true, at: seconds(174), // many connections without a call
			acts: []act{{0, connect}, {seconds(60), disconnect}},
			asks: []ask{{seconds(35), either}, {seconds(57), either}},
		},
		{
			name: "client-watches-events", twin: true, at: seconds(177), // a stream is to be open for long
			says:     byHand + `|GetContainerEvents`,
			everyone: byHand,
			acts:     []act{{0, listen}, {seconds(85), listenNoMore}},
			asks:     []ask{{seconds(43), either}, {seconds(78), either}},
		},
		{
			name: "client-asks-for-what-is-gone", twin: true, runtime: primary, at: seconds(180),
			says:     byHand + `|not found|unknown|no such (container|id)`,
			everyone: byHand,
			acts: []act{{0, func() error {
				for range 5 {
					if p.ctl("inspect", strings.Repeat("deadbeef", 8)) == nil {
						return errors.New("there is such a container")
					}
				}
				return nil
			}}},
			asks: []ask{{seconds(12), either}, {seconds(54), either}},
		},
		{
			name: "person-checkpoints-in-vain", twin: true, pod: "harp", runtime: primary, at: seconds(183), claims: "file", // there is no criu
			says:     byHand + `|checkpoint|criu`,
			everyone: byHand,
			acts: []act{{0, func() error {
				id, _, err := p.process("harp")
				if err != nil {
					return err
				}
				for range 3 {
					if p.ctl("checkpoint", "--export="+filepath.Join(p.dir, "missing", "harp.tar"), id) == nil {
						return errors.New("there is a checkpoint")
					}
				}
				return nil
			}}},
			asks: []ask{{seconds(15), either}, {seconds(56), either}},
		},
		{
			name: "person-removes-an-image", twin: true, pod: "zither", runtime: primary, at: seconds(186), // and kubelet pulls it again
			says:     byHand + `|RemoveImage|\brmi\b`,
			everyone: byHand,
			acts: []act{
				{seconds(-25), func() error { return p.ctl("pull", registry+"/testbed/string:1") }},
				{0, func() error {
					return errors.Join(p.ctl("rmi", registry+"/testbed/string:1"), p.adds(withImage(pod("zither", "sleep"), registry+"/testbed/string:1"))())
				}},
				{seconds(95), p.ends("zither")},
			},
			asks: []ask{{seconds(18), either}, {seconds(59), either}},
		},
		{
			name: "hook-uses-up-the-grace-period", twin: true, pod: "gong", runtime: primary, at: seconds(189), claims: "grace slow", // as its program is
			says:   `\bhooks?\b|pre-?stop|exec|grace`,
			denies: `\b(primary|containerd) (hangs|hung|is (frozen|silent|gone|away|down))`,
			acts:   []act{{seconds(-45), p.adds(lingers)}, {0, p.ends("gong")}},
			asks:   []ask{{seconds(16), either}, {seconds(62), either}},
		},

		// What happens to the second runtime and to kubelet.
		{
			name: "runc-of-another-machine", pod: "marimba", runtime: old, at: seconds(335), claims: "runtime gone slow file memory", // as after a wrong package
			says:     `exec format|\brunc\b|oci runtime|architecture`,
			everyone: `exec format|\brunc\b|oci runtime|` + secondCameBack,
			denies:   `image (is|was|has|needs) |pull secret|\bcni\b|` + imageAbsent + "|" + outOfMemory,
			acts: []act{
				{0, p.configures(p.second.Binaries.NoSeccomp, foreign)},
				{seconds(6), p.adds(onSecond(pod("marimba", "sleep"), "testbed/app:1"))},
				{seconds(47), p.configures(foreign, p.second.Binaries.NoSeccomp)}, {seconds(79), p.ends("marimba")},
			},
			asks: []ask{{seconds(42), lasts}, {seconds(78), over}, {seconds(99), over}},
		},
		{
			name: "runtime-is-upgraded", twin: true, runtime: old, at: seconds(437), claims: "runtime gone slow", // and its pods go on
			says:     secondCameBack + `|upgrad|version|\b1\.7|\b2\.\d`,
			everyone: secondCameBack + `|upgrad|version`,
			acts:     []act{{0, func() error { return p.second.Upgrade(p.t.Context(), "2.4") }}},
			asks:     []ask{{seconds(14), either}, {seconds(26), either}},
		},
		{
			name: "kubelet-is-not-started", at: seconds(466), claims: "kubelet", // whoever stopped it has forgotten it
			says: kubeletCameBack + `|kubelet .*(ended|down|quiet|stopp|not run|no calls?|no requests?|nothing)|` +
				`kubelet (has|had|did|does) not (call|ask|been heard|run)|no (calls?|requests?) (from|of|by) kubelet`,
			everyone: `kubelet`,
			acts: []act{
				{0, p.changing(func() error { return p.kubelet.Terminate(p.t.Context()) })},
				{seconds(56), p.changing(func() error { return p.kubelet.Start(p.t.Context()) })},
			},
			asks: []ask{{seconds(50), lasts}, {seconds(72), over}},
		},
	}
}

// hosts writes a runtime's configuration of the registry with a name.
func (p *patient) hosts(c *runtimes.Containerd, name, text string) {
	dir := filepath.Join(c.Dir, "certs.d", name)
	require.NoError(p.t, os.MkdirAll(dir, 0o755))
	text = "server = \"https://127.0.0.1:1\"\n" + text
	require.NoError(p.t, os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(text), 0o644))
}

// pushWithoutLayerIDs puts an image into the registry that is testbed/app:1, but its configuration lists none of its layers.
func (p *patient) pushWithoutLayerIDs(image string) {
	base := p.pushed("testbed/app:1")
	file, err := base.ConfigFile()
	require.NoError(p.t, err)
	file = file.DeepCopy()
	file.RootFS.DiffIDs = nil
	made, err := mutate.ConfigFile(base, file)
	require.NoError(p.t, err)
	require.NoError(p.t, p.registry.Push(image, made))
}

// keepsStopping returns the acts between which crictl stops the container of a pod on the primary whenever it runs.
func (p *patient) keepsStopping(pod string) (begin, end func() error) {
	ctx, stop := context.WithCancel(p.t.Context())
	done := make(chan int, 1) // gets how often it was stopped
	id := regexp.MustCompile(`\b[0-9a-f]{64}\b`)
	begin = func() error {
		go func() {
			times := 0
			for ctx.Err() == nil {
				out, err := p.ctlOutput("ps", "--quiet", "--label", "io.kubernetes.pod.name="+pod+"-"+p.kubelet.NodeName)
				if running := id.FindString(out); err == nil && running != "" && p.ctl("stop", "--timeout", "2", running) == nil {
					times++
				}
				select {
				case <-ctx.Done():
				case <-time.After(4 * time.Second):
				}
			}
			done <- times
		}()
		return nil
	}
	end = func() error {
		stop()
		if times := <-done; times < 2 {
			return fmt.Errorf("the container of %s was stopped %d times", pod, times)
		}
		return nil
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

// killPauseAgain returns the act that does the same if kubelet has made another sandbox.
func (p *patient) killPauseAgain(pod string) func() error {
	return func() error {
		if err := p.killPause(pod); err != nil {
			p.say("on %d: the sandbox of %s is spared: %v", p.pods, pod, err)
		}
		return nil
	}
}
