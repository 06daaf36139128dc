package why_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/criproxy/criproxy/internal/testing/markdown"
	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// This is the second set of nodes: criproxy why is only measured on it. Whoever writes a rule of why reads neither this file
// nor the recordings of its runs. Whoever wrote this file had not read the rules: the patterns hold the words of people who
// know what was done to the node, and not those of why.

// A situation is what people meet on real nodes: a fault, or its twin, which looks alike and is well.
type situation struct {
	name     string
	twin     bool
	pod      string        // whose trouble it is; empty means that it is a runtime's or kubelet's
	runtime  string        // "primary" or old, of the pod or in trouble; empty means neither
	at       time.Duration // acts and questions are later by their own times, and as much as those before them came late
	acts     []act
	asks     []ask
	says     string // what a truthful answer mentions; of a twin, what it may mention
	claims   string // the names of claims that are true; all others contradict what was done
	denies   string // what contradicts what was done, besides claims
	everyone string // what may be said of each pod of the runtime, or of all if it has none, from at on

	begun time.Time // when its first step was done; only the goroutine of its node uses it
}

// A set is what happens on the nodes of a test.
type set struct {
	name       string               // of its files and of its section: second
	first      func() []*corev1.Pod // the pods that run before: idle and aged are well, and only aged is on the second runtime when nothing has begun
	situations func(*patient) []*situation
}

// An act is a step of a situation.
type act struct {
	after time.Duration
	do    func() error
}

// An ask is when why is asked, and whether the fault lasts then.
type ask struct {
	after time.Duration
	state state
}

type state int

const (
	lasts  state = iota
	over         // why may say that it was so, not that it is
	either       // it was over in a moment, or ends about now
)

const primary = "primary"

// claims are causes that an answer may name.
var claims = map[string]*regexp.Regexp{
	"slow": pattern(`\b(is|was|are|were|been) (too )?slow\b|hangs|\bhung\b|(does|did) not answer`),
	"gone": pattern(`(primary|old\.io|containerd) (is|was|has) (gone|down|away|restarted|crashed)`),
	"disk": pattern(`no space|disk`),
	"registry": pattern(`registry (is|was|does|did|refuse|answer|limit|want)|unauthori[sz]ed|manifest unknown|` +
		`too ?many ?requests|rate limit|read tcp.*reset by peer`),
	"network": pattern(`\bcni\b|\bnetwork\b|ip address`),
	"shim":    pattern(`shim (is|was|did|does|has|died|stop|hang)`),
	"memory":  pattern(`\boom|out of memory|memory limit`),
	"grace":   pattern(`grace period`),
	"file":    pattern(`no such file|executable|entry ?point|not a directory`),
	"probe":   pattern(`probe`),
	"kubelet": pattern(`kubelet (is|was|has been) (stopped|frozen|silent|restarted|away|gone)`),
}

// accuses finds the runtime that a sentence says is in trouble: the claim "runtime".
var accuses = pattern(`\b(primary|old\.io) (hangs|` +
	`(is|was|has been|does|did|went) (too |not |still |again )?(slow|gone|down|away|hung|answer|restarted|stopped|unavailable|frozen|silent))`)

// quoted finds what criproxy measured of a runtime. If the machine was busy, it may be so of a runtime to which nothing was done.
var quoted = pattern(`\bslow\b.*has not answered \S+ within|has been under way for`)

// named finds the names of pods.
var named = regexp.MustCompile(`testbed/([a-z0-9-]+?)-node-[0-9a-f]+`)

func pattern(s string) *regexp.Regexp { return regexp.MustCompile("(?i)" + s) }

func matches(s, text string) bool { return s != "" && pattern(s).MatchString(text) }

// A verdict is what is right or wrong with a finding.
type verdict struct {
	of    *situation // what it is about; nil if that is unknown
	wrong string     // how it contradicts what was done; empty if it does not
	right bool       // it mentions what was done; a finding that is neither is for people to judge
}

// judge compares a finding about a pod or, without one, about the node with what was done until then.
func judge(begun []*situation, about string, f finding) verdict {
	text := f.sentence()
	pods := podsOf(text)
	if len(pods) == 0 && about != "" {
		pods = []string{about}
	}
	if len(pods) == 0 {
		return judgeNode(begun, text)
	}
	var all verdict
	for _, pod := range pods {
		one := judgePod(begun, pod, text)
		if one.wrong != "" {
			return one
		}
		all.of, all.right = cmp.Or(one.of, all.of), all.right || one.right
	}
	if about != "" && !slices.Contains(pods, about) && (all.of == nil || all.of.everyone == "") {
		return verdict{of: all.of, wrong: "it is about another pod than " + about}
	}
	return all
}

// podsOf returns the pods that a sentence names.
func podsOf(text string) (pods []string) {
	for _, m := range named.FindAllStringSubmatch(text, -1) {
		pods = append(pods, m[1])
	}
	return pods
}

func judgePod(begun []*situation, pod, text string) verdict {
	runtime := runtimeOf(begun, pod)
	i := slices.IndexFunc(begun, func(s *situation) bool { return s.has(pod) })
	var own *situation
	if i >= 0 {
		own = begun[i]
	}
	if m := accuses.FindStringSubmatch(text); m != nil && runtime != "" && !strings.EqualFold(m[1], runtime) {
		return verdict{of: own, wrong: "it accuses " + m[1] + ", and " + pod + " is on " + runtime}
	}
	if own == nil || own.twin || !matches(own.says, text) {
		for _, s := range begun {
			if (s.runtime == "" || s.runtime == runtime) && matches(s.everyone, text) {
				return verdict{of: s, right: true}
			}
		}
	}
	if own == nil {
		return verdict{wrong: pod + " is well"}
	}
	if own.twin && !matches(own.says, text) {
		return verdict{of: own, wrong: pod + " is well"}
	}
	return verdict{of: own, wrong: own.contradicts(text), right: matches(own.says, text)}
}

// contradicts returns the claim of a sentence that contradicts what was done; empty if there is none.
func (s *situation) contradicts(text string) string {
	for _, name := range append(slices.Sorted(maps.Keys(claims)), "runtime") {
		p := cmp.Or(claims[name], accuses)
		if p.MatchString(text) && !slices.Contains(strings.Fields(s.claims), name) {
			return "the cause is not: " + name
		}
	}
	if matches(s.denies, text) {
		return "it was otherwise"
	}
	return ""
}

// judgeNode is judge for a finding that names no pod.
func judgeNode(begun []*situation, text string) verdict {
	m := accuses.FindStringSubmatch(text)
	for _, s := range begun {
		ours := m == nil || s.everyone != "" && strings.EqualFold(m[1], s.runtime)
		if ours && (matches(s.says, text) || matches(s.everyone, text)) && s.contradicts(text) == "" {
			return verdict{of: s, right: true}
		}
	}
	if m != nil {
		return verdict{wrong: "nothing was done to " + m[1]}
	}
	return verdict{}
}

// has reports whether a pod is the situation's, or one of several whose names begin with it.
func (s *situation) has(pod string) bool {
	return s.pod != "" && (pod == s.pod || strings.HasSuffix(s.pod, "-") && strings.HasPrefix(pod, s.pod))
}

// who returns the name of the situation's pod, or of the first of several.
func (s *situation) who() string {
	if strings.HasSuffix(s.pod, "-") {
		return s.pod + "0"
	}
	return s.pod
}

func runtimeOf(all []*situation, pod string) string {
	for _, s := range all {
		if s.has(pod) {
			return s.runtime
		}
	}
	if pod == "aged" || pod == "courteous" {
		return old
	}
	return primary
}

// A patient is a node of a set.
type patient struct {
	*node
	t          *testing.T
	dir        string     // for files of the situations
	changes    sync.Mutex // of the states of kubelet and its primary
	crictl     string
	situations []*situation
}

// newPatient starts a node of a set with kubelet's own time-outs. Its primary calls runc through a script, so that runc can break.
func newPatient(t *testing.T, pods int, of set) *patient {
	t.Helper()
	bin := testbed.Require(t, append(build.ForContainers(), build.Kubelet)...)
	p := &patient{t: t, dir: t.TempDir(), crictl: bin.Crictl}
	runc := filepath.Join(p.dir, "runc")
	script := fmt.Sprintf(`#!/bin/sh
[ -e %[1]s ] && . %[1]s
exec %[2]s "$@"
`, p.broken(), bin.NoSeccomp)
	require.NoError(t, os.WriteFile(runc, []byte(script), 0o755))
	p.node = newNode(t, setup{direct: true, second: true, recorder: 16 << 20, toml: fmt.Sprintf(`
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = %q
`, runc)})
	p.situations = of.situations(p)
	t.Cleanup(func() { // the nodes end faster when they work
		_ = os.Remove(p.broken())
		_ = p.runtime.Thaw()
		_ = p.kubelet.Thaw()
	})
	all := of.first()
	for i := len(all); i < pods; i++ {
		all = append(all, pod(fmt.Sprintf("extra-%d", i), "sleep"))
	}
	p.pods = len(all)
	p.run(t, all...)
	return p
}

// broken returns the file with what the script of runc does before it calls runc. Without the file it does nothing.
func (p *patient) broken() string { return filepath.Join(p.dir, "broken") }

// adds returns the act that makes kubelet run pods.
func (p *patient) adds(pods ...*corev1.Pod) func() error {
	return func() (err error) {
		for _, one := range pods {
			err = errors.Join(err, p.kubelet.AddManifest(one))
		}
		return err
	}
}

// ends returns the act that makes kubelet end pods.
func (p *patient) ends(pods ...string) func() error {
	return func() (err error) {
		for _, one := range pods {
			err = errors.Join(err, p.kubelet.RemoveManifest(one))
		}
		return err
	}
}

// removes returns the act that removes a file.
func removes(file string) func() error { return func() error { return os.Remove(file) } }

// writes returns the act that writes a file.
func writes(file, text string) func() error {
	return func() error { return os.WriteFile(file, []byte(text), 0o644) }
}

// both returns the act that is two acts.
func both(one, other func() error) func() error {
	return func() error { return errors.Join(one(), other()) }
}

// withImage returns a pod whose first container has another image.
func withImage(one *corev1.Pod, image string) *corev1.Pod {
	one.Spec.Containers[0].Image = image
	return one
}

// seconds are for the times of situations, which are whole seconds.
func seconds(n int) time.Duration { return time.Duration(n) * time.Second }

// lacksLibrary is a runc whose library is missing.
const lacksLibrary = `echo "runc: error while loading shared libraries: libseccomp.so.2: cannot open shared object file: No such file or directory" >&2
exit 127
`

// secondSet is the second set of nodes.
var secondSet = set{
	name: "second", situations: (*patient).makeSituations,
	first: func() []*corev1.Pod {
		return []*corev1.Pod{
			pod("idle", "sleep"), onSecond(pod("aged", "sleep"), "testbed/app:1"), slowlyProbed(pod("steady", "sleep"), "3s", 10), pod("clingy", "sleep"),
			saysGoodbye(onSecond(pod("courteous", "sleep"), "testbed/app:1")),
		}
	},
}

// makeSituations returns what happens on a node. Faults of single pods come first, several at a time; then those of a whole
// runtime and of kubelet, one after the other.
func (p *patient) makeSituations() []*situation {
	run, end, remove, write, of := p.adds, p.ends, removes, writes, withImage

	p.badRegistry(p.second, "private.test", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", `Basic realm="private"`)
		http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`, http.StatusUnauthorized)
	})
	p.badRegistry(p.runtime, "limited.test", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, `{"errors":[{"code":"TOOMANYREQUESTS","message":"You have reached your pull rate limit."}]}`, http.StatusTooManyRequests)
	})
	var works atomic.Bool
	well := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: p.registry.Addr})
	p.badRegistry(p.second, "flaky.test", func(w http.ResponseWriter, r *http.Request) {
		if works.Load() {
			well.ServeHTTP(w, r)
			return
		}
		if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
			if tcp, ok := c.(*net.TCPConn); ok {
				_ = tcp.SetLinger(0) // so that Close resets it
			}
			_ = c.Close()
		}
	})

	noProgram := pod("programless")
	noProgram.Spec.Containers[0].Command = []string{"/usr/bin/server"}
	file := filepath.Join(p.dir, "file")
	require.NoError(p.t, os.WriteFile(file, nil, 0o644))
	misplaced := withHostPath(onSecond(pod("misplaced", "sleep"), "testbed/app:1"), filepath.Join(file, "data"), corev1.HostPathUnset)
	cramped := limited(pod("cramped", "sleep"), "128Ki")
	cramped.Spec.Containers = append(cramped.Spec.Containers, corev1.Container{Name: "side", Image: image, ImagePullPolicy: corev1.PullIfNotPresent})
	kata := pod("isolated", "sleep")
	kata.Annotations["kubernetes.io/target-runtime"] = "kata.io"
	preparing := pod("preparing", "sleep")
	preparing.Spec.InitContainers = []corev1.Container{{Name: "init", Image: image, ImagePullPolicy: corev1.PullIfNotPresent, Args: []string{"wait", "60s"}}}
	finished := pod("finished", "wait", "5s", "then", "exit", "0")
	finished.Spec.RestartPolicy = corev1.RestartPolicyNever
	var burst []*corev1.Pod
	var burstNames []string
	for i := range 6 {
		burstNames = append(burstNames, fmt.Sprintf("burst-%d", i))
		burst = append(burst, pod(burstNames[i], "sleep"))
	}
	addFails, delFails := filepath.Join(p.cni, "ADD-addressless"), filepath.Join(p.cni, "DEL-clingy")
	network, secondNetwork := networkOf(p.runtime), networkOf(p.second)
	networkText, err := os.ReadFile(network)
	require.NoError(p.t, err)
	secondText, err := os.ReadFile(secondNetwork)
	require.NoError(p.t, err)
	withPortmap := strings.Replace(string(secondText), `"plugins": [`, `"plugins": [{"type":"portmap","capabilities":{"portMappings":true}},`, 1)
	require.NotEqual(p.t, string(secondText), withPortmap)

	return []*situation{
		{
			name: "registry-wants-login", pod: "locked-out", runtime: old, at: seconds(5), claims: "registry",
			says: `401|unauthori[sz]ed|authori[sz]ation|authenticat|credential|access denied|pull secret|log ?in`,
			acts: []act{{0, run(of(onSecond(pod("locked-out", "sleep"), ""), old+"/private.test/testbed/app:1"))}, {seconds(110), end("locked-out")}},
			asks: []ask{{seconds(35), lasts}, {seconds(104), lasts}, {seconds(140), over}, {seconds(330), over}},
		},
		{
			name: "tag-mistyped", pod: "typo", runtime: primary, at: seconds(7), claims: "registry",
			says: `not found|(does not|doesn't) exist|no such (image|tag|manifest)|404|(manifest|tag|name) (is )?unknown|unknown (manifest|tag|image)|has no `,
			acts: []act{{0, run(of(pod("typo", "sleep"), registry+"/testbed/app:9"))}, {seconds(110), end("typo")}},
			asks: []ask{{seconds(38), lasts}, {seconds(103), lasts}, {seconds(143), over}},
		},
		{
			name: "registry-limits", pod: "limited", runtime: primary, at: seconds(9), claims: "registry",
			says: `429|too ?many ?requests|(rate|pull) ?limit`,
			acts: []act{{0, run(of(pod("limited", "sleep"), "limited.test/testbed/app:1"))}, {seconds(110), end("limited")}},
			asks: []ask{{seconds(41), lasts}, {seconds(102), lasts}, {seconds(146), over}},
		},
		{
			name: "program-missing", pod: "programless", runtime: primary, at: seconds(11), claims: "file",
			says: `/usr/bin/server|no such file|executable|entry ?point|command .*(missing|not found)`,
			acts: []act{{0, run(noProgram)}, {seconds(110), end("programless")}},
			asks: []ask{{seconds(44), lasts}, {seconds(101), lasts}, {seconds(149), over}},
		},
		{
			name: "host-path-in-a-file", pod: "misplaced", runtime: old, at: seconds(13), claims: "file",
			says: `not a directory|mkdir|mount|volume|host ?path`,
			acts: []act{{0, run(misplaced)}, {seconds(110), end("misplaced")}},
			asks: []ask{{seconds(47), lasts}, {seconds(100), lasts}, {seconds(152), over}},
		},
		{
			name: "memory-limit-tiny", pod: "cramped", runtime: primary, at: seconds(15), claims: "memory",
			says: `\boom|memory`,
			acts: []act{{0, run(cramped)}, {seconds(110), end("cramped")}},
			asks: []ask{{seconds(50), lasts}, {seconds(99), lasts}, {seconds(155), over}},
		},
		{
			name: "probe-takes-too-long", pod: "sleepy", runtime: primary, at: seconds(17), claims: "probe slow",
			says: `(probe|exec\w*).*(tim(e|ed)[ -]?out|longer|too (long|slow)|not (end|finish|return|complete)|deadline|more than|\b1s)`,
			acts: []act{{0, run(slowlyProbed(pod("sleepy", "sleep"), "30s", 1))}, {seconds(110), end("sleepy")}},
			asks: []ask{{seconds(53), lasts}, {seconds(98), lasts}, {seconds(158), over}},
		},
		{
			name: "runtime-unknown", pod: "isolated", at: seconds(19),
			says: `kata`,
			acts: []act{{0, run(kata)}, {seconds(110), end("isolated")}},
			asks: []ask{{seconds(40), lasts}, {seconds(161), over}},
		},
		{
			name: "killed-for-memory", twin: true, pod: "hungry", runtime: primary, at: seconds(21), claims: "memory",
			says: `\boom|memory|137|crash|restart|exit`,
			acts: []act{{0, run(limited(pod("hungry", "file", "/dev/zero"), "64Mi"))}, {seconds(110), end("hungry")}},
			asks: []ask{{seconds(50), lasts}, {seconds(100), lasts}, {seconds(164), over}},
		},
		{
			name: "init-takes-its-time", twin: true, pod: "preparing", runtime: primary, at: seconds(22),
			acts: []act{{0, run(preparing)}, {seconds(116), end("preparing")}},
			asks: []ask{{seconds(48), either}, {seconds(90), either}},
		},
		{
			name: "job-is-done", twin: true, pod: "finished", runtime: primary, at: seconds(23),
			acts: []act{{0, run(finished)}, {seconds(118), end("finished")}},
			asks: []ask{{seconds(34), either}, {seconds(167), either}},
		},
		{
			name: "volume-missing", twin: true, pod: "volumeless", runtime: primary, at: seconds(24), claims: "file",
			says: `volume|kubelet (has|did) not|never (been )?ask|not (been )?asked|no sandbox`, // kubelet asks no runtime for it
			acts: []act{{0, run(withHostPath(pod("volumeless", "sleep"), filepath.Join(p.dir, "missing"), corev1.HostPathDirectory))}, {seconds(120), end("volumeless")}},
			asks: []ask{{seconds(64), either}},
		},
		{
			name: "registry-resets", pod: "cut-off", runtime: old, at: seconds(26), claims: "registry network",
			says: `reset|EOF|connection|unreachable|broken|(can|could) ?not (be )?(reach|connect)`,
			acts: []act{
				{0, run(of(onSecond(pod("cut-off", "sleep"), ""), old+"/flaky.test/testbed/app:1"))},
				{seconds(60), func() error { works.Store(true); return nil }}, {seconds(118), end("cut-off")},
			},
			asks: []ask{{seconds(45), lasts}, {seconds(112), over}, {seconds(150), over}},
		},
		{
			name: "no-address-left", pod: "addressless", runtime: primary, at: seconds(30), claims: "network",
			says: `no (more |free )?(ip )?address|address(es)? .*(left|available|exhaust|used|full)|out of (ip )?address|ipam`,
			acts: []act{
				{0, both(func() error { return p.usesUpAddresses("addressless") }, run(pod("addressless", "sleep")))},
				{seconds(60), remove(addFails)}, {seconds(105), end("addressless")},
			},
			asks: []ask{{seconds(40), lasts}, {seconds(95), over}, {seconds(145), over}},
		},
		{
			name: "network-does-not-let-go", pod: "clingy", runtime: primary, at: seconds(35), claims: "network",
			says: `refused|(cni|network|StopPodSandbox).*(del|remov|tear|destroy|fail)`,
			acts: []act{
				{0, both(write(delFails, // as Calico's plugin, when it cannot reach the API server
					`printf %s '{"cniVersion":"1.0.0","code":11,"msg":"Get \"https://10.96.0.1:443/api/v1/namespaces/testbed/pods/clingy\": dial tcp 10.96.0.1:443: connect: connection refused"}'; exit 1`+"\n"),
					end("clingy"))},
				{seconds(60), remove(delFails)},
			},
			asks: []ask{{seconds(32), lasts}, {seconds(56), lasts}, {seconds(95), over}, {seconds(205), over}},
		},
		{
			name: "hook-takes-its-time", twin: true, pod: "courteous", runtime: old, at: seconds(40),
			acts: []act{{0, end("courteous")}},
			asks: []ask{{seconds(16), either}, {seconds(62), either}},
		},
		{
			name: "pod-removed-by-hand", pod: "swept", runtime: primary, at: seconds(60),
			says: `crictl|(another|other|different) client|not (by )?kubelet|(besides|behind|than) kubelet|by hand|RemovePodSandbox|StopPodSandbox`,
			acts: []act{{seconds(-60), run(pod("swept", "sleep"))}, {0, func() error {
				id, err := p.sole(p.runtime, "sandbox", "swept")
				if err != nil {
					return err
				}
				return p.ctl("rmp", "-f", id)
			}}, {seconds(105), end("swept")}},
			asks: []ask{{seconds(20), either}, {seconds(90), over}, {seconds(135), over}},
		},
		{
			name: "shim-killed", pod: "shimless", runtime: primary, at: seconds(75), claims: "shim",
			says: `shim|sandbox.*(died|dead|ended|exit|gone|lost|vanish|stopped|not ?ready|replaced|anew|again|without)|killed|\b(137|255)\b`,
			acts: []act{{seconds(-75), run(pod("shimless", "sleep"))}, {0, func() error { return p.killShim("shimless") }}, {seconds(105), end("shimless")}},
			asks: []ask{{seconds(20), either}, {seconds(88), over}, {seconds(138), over}},
		},
		{
			name: "plugin-missing", pod: "plugless", runtime: old, at: seconds(150), claims: "network",
			says: `portmap|plugin .*(missing|not (found|there|installed))|find plugin`,
			acts: []act{
				{0, both(write(secondNetwork, withPortmap), run(onSecond(pod("plugless", "sleep"), "testbed/app:1")))},
				{seconds(50), write(secondNetwork, string(secondText))}, {seconds(90), end("plugless")},
			},
			asks: []ask{{seconds(25), lasts}, {seconds(44), lasts}, {seconds(82), over}, {seconds(130), over}},
		},
		{
			name: "crictl-in-a-loop", twin: true, at: seconds(152),
			says:     `crictl`,
			everyone: `crictl`,
			acts: []act{{0, func() error {
				for until := time.Now().Add(30 * time.Second); time.Now().Before(until); {
					if err := p.ctl("ps", "-a"); err != nil {
						return err
					}
					time.Sleep(250 * time.Millisecond)
				}
				return nil
			}}},
			asks: []ask{{seconds(26), either}, {seconds(56), either}},
		},
		{
			name: "many-at-once", twin: true, pod: "burst-", runtime: primary, at: seconds(208),
			acts: []act{{0, run(burst...)}, {seconds(28), end(burstNames...)}},
			asks: []ask{{seconds(6), either}, {seconds(24), either}},
		},
		{
			name: "slow-probe-in-time", twin: true, pod: "steady", runtime: primary,
			asks: []ask{{seconds(65), either}, {seconds(200), either}},
		},
		{
			name: "runc-broken", pod: "runcless", runtime: primary, at: seconds(245), claims: "file",
			says:     `runc|libseccomp|shared librar|oci runtime`,
			everyone: `runc|libseccomp|shared librar|oci runtime`,
			acts:     []act{{0, both(write(p.broken(), lacksLibrary), run(pod("runcless", "sleep")))}, {seconds(40), remove(p.broken())}, {seconds(66), end("runcless")}},
			asks:     []ask{{seconds(30), lasts}, {seconds(62), over}, {seconds(100), over}},
		},
		{
			name: "network-not-configured", pod: "offline", runtime: primary, at: seconds(318), claims: "network",
			says:     `network .*not ready|NetworkReady|NetworkPluginNotReady|\bcni\b|network (plugin|config)`,
			everyone: `network|\bcni\b`,
			acts: []act{
				{0, remove(network)}, {seconds(8), run(pod("offline", "sleep"))},
				{seconds(45), write(network, string(networkText))}, {seconds(70), end("offline")},
			},
			asks: []ask{{seconds(40), lasts}, {seconds(66), over}, {seconds(100), over}},
		},
		{
			name: "kubelet-restarted", twin: true, at: seconds(392), claims: "kubelet",
			says:     `kubelet`,
			everyone: `kubelet`,
			acts: []act{{0, func() error {
				p.changes.Lock()
				defer p.changes.Unlock()
				if err := p.kubelet.Terminate(p.t.Context()); err != nil {
					return err
				}
				return p.kubelet.Start(p.t.Context())
			}}},
			asks: []ask{{seconds(15), either}},
		},
		{
			name: "kubelet-frozen", at: seconds(415), claims: "kubelet",
			says: `kubelet .*(silen|frozen|froze|stopp|paus|stall|hung|quiet|no calls?|no requests?|nothing)|` +
				`kubelet (has|had|did|does) not (call|ask|been heard)|no (calls?|requests?) (from|of|by) kubelet`,
			everyone: `kubelet`,
			acts:     []act{{0, p.changing(p.kubelet.Freeze)}, {seconds(60), p.changing(p.kubelet.Thaw)}},
			asks:     []ask{{seconds(50), lasts}, {seconds(77), over}, {seconds(240), over}},
		},
		{
			name: "pod-waits-for-kubelet", twin: true, pod: "latecomer", runtime: primary, at: seconds(420), claims: "kubelet",
			says: `kubelet`,
			acts: []act{{0, run(pod("latecomer", "sleep"))}, {seconds(78), end("latecomer")}},
			asks: []ask{{seconds(74), either}, {seconds(100), either}},
		},
		{
			name: "containerd-killed", runtime: primary, at: seconds(502), claims: "runtime gone slow probe",
			says:     `primary .*(gone|restart|away|down|unavailable|crash|died|ended|refused|anew|new process)`,
			everyone: `primary|containerd`,
			acts:     []act{{0, p.changing(p.runtime.Kill)}, {seconds(5), p.changing(func() error { return p.runtime.Start(p.t.Context()) })}},
			asks:     []ask{{seconds(22), over}, {seconds(168), over}},
		},
		{
			name: "containerd-frozen", pod: "iced", runtime: primary, at: seconds(528), claims: "runtime slow gone probe",
			says:     `(primary|containerd|runtime)\b.*(slow|not answer|no answer|hang|hung|silent|frozen|froze|stopped|unresponsive|late)`,
			everyone: `primary|containerd|under way`,
			acts:     []act{{0, p.changing(p.runtime.Freeze)}, {seconds(5), run(pod("iced", "sleep"))}, {seconds(135), p.changing(p.runtime.Thaw)}, {seconds(160), end("iced")}},
			asks:     []ask{{seconds(50), lasts}, {seconds(128), lasts}, {seconds(153), over}, {seconds(178), over}},
		},
	}
}

// Two nodes, with 5 and 30 pods, have faults that nobody who wrote a rule has seen. criproxy why is asked about the pod, about
// the node and about pods that are well: while each fault lasts, just after, long after, and when its pod is deleted. It takes
// a quarter of an hour: use -timeout 25m, and CRIPROXY_TESTBED_RACE=off, as criproxy is slower with the race detector.
//
// With -record FOLDER each question leaves second-SITUATION-PODS-TIME.jsonl.zst, which criproxy why can be asked about
// again, and second-answers.jsonl has what it said.
//
// With -acts nobody is asked: at each step and each question the test prints what kubelet and the runtimes show.
func TestWhyOnASecondSetOfNodes(t *testing.T) { examine(t, secondSet) }

// examine asks the questions of a set.
func examine(t *testing.T, of set) {
	x := &exam{t: t, set: of, nodes: []*patient{newPatient(t, 5, of), newPatient(t, 30, of)}, lies: map[string]int{}, rules: map[string]*byRule{}}
	for _, n := range x.nodes {
		x.work.Go(func() { follow(x.steps(n)) }) // each step has bounds
	}
	x.work.Wait()
	x.report()
}

// steps returns what is done to a node, and asked about it.
func (x *exam) steps(n *patient) (steps []step) {
	for _, s := range n.situations {
		at := func(after time.Duration, do func()) {
			steps = append(steps, step{s.at + after, func() {
				if s.begun.IsZero() {
					s.begun = time.Now()
				}
				do()
			}})
		}
		for i, a := range s.acts {
			at(a.after, func() {
				n.say("on %d: %s, step %d", n.pods, s.name, i+1)
				if err := a.do(); err != nil {
					x.fail(n, s, err)
				}
				if *actsOnly {
					n.show(s, fmt.Sprintf("after step %d", i+1))
				}
			})
		}
		for i, a := range s.asks {
			at(a.after, func() { x.ask(n, s, i) })
		}
	}
	return steps
}

// An exam asks the questions and collects the answers.
type exam struct {
	t     *testing.T
	set   set
	nodes []*patient
	work  sync.WaitGroup

	mu      sync.Mutex
	answers []answer
	failed  []string
	lies    map[string]int // :: what was wrong → how often
	rules   map[string]*byRule
}

// byRule counts the findings of a rule in all answers. Of what is undecided, people say whether it is true.
type byRule struct{ right, undecided, wrong int }

// An answer is what criproxy why said, and what of it was right.
type answer struct {
	Pods      int // of the node at its start
	Situation string
	Twin      bool
	After     float64 // seconds since the situation began, when it was asked
	About     string  // a pod; empty means the node
	Class     string  // found, missed, false or well; the last two also of questions about pods that are well
	Wrong     []string
	Unjudged  []string // what people have to judge
	Pod       string   // what kubelet says of the situation's pod
	Says      string   // what a truthful answer mentions
	Lasts     *bool    // nil means that it does not matter
	Recording string
	Load      float64 // of the machine in the last minute
	Problem   string
	Findings  []finding
}

func (x *exam) fail(n *patient, s *situation, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.failed = append(x.failed, fmt.Sprintf("%s on %d: %v", s.name, n.pods, err))
	n.say("on %d: %s could not be made: %v", n.pods, s.name, err)
}

// ask asks question i of a situation: about its pod; of a fault also about the node, and at first and at last about pods that
// are well.
func (x *exam) ask(n *patient, s *situation, i int) {
	if *actsOnly {
		n.show(s, fmt.Sprintf("question %d, when the fault %s", i+1, s.asks[i].state))
		return
	}
	after := time.Since(s.begun)
	recording := ""
	if *record != "" {
		recording = fmt.Sprintf("%s-%s-%d-%03.0fs.jsonl.zst", x.set.name, s.name, n.pods, s.asks[i].after.Seconds())
		assert.NoError(x.t, host.Command(x.t.Context(), n.proxy.Program, "dump", "-admin", n.proxy.Admin(), filepath.Join(*record, recording)).Run())
	}
	who := s.who()
	abouts := []string{who}
	if !s.twin && who != "" {
		abouts = append(abouts, "")
	}
	if !s.twin && (i == 0 || i == len(s.asks)-1) {
		if s.runtime != old || s.everyone != "" {
			abouts = append(abouts, "idle")
		}
		if s.runtime == old || s.everyone != "" {
			abouts = append(abouts, "aged")
		}
	}
	pod, load := n.stateOf(who), loadOfMachine(x.t)
	for _, about := range abouts {
		var args []string
		if about != "" {
			args = []string{"testbed/" + about + "-" + n.kubelet.NodeName}
		}
		found, problem := n.node.ask(x.t, args...)
		a := answer{
			Pods: n.pods, Situation: s.name, Twin: s.twin, After: after.Seconds(), About: about, Pod: pod, Says: s.says, Recording: recording,
			Load: load, Problem: problem, Findings: found,
		}
		if s.asks[i].state != either {
			still := s.asks[i].state == lasts
			a.Lasts = &still
		}
		x.judge(n, s, &a, about == "" || about == who)
	}
}

// judge gives an answer its class. A mistake about another situation counts there.
func (x *exam) judge(n *patient, s *situation, a *answer, own bool) {
	begun := slices.DeleteFunc(slices.Clone(n.situations), func(s *situation) bool { return s.begun.IsZero() })
	var mentioned *finding
	hit := false
	ours := func(pods []string) bool { return len(pods) == 0 || s.pod == "" || slices.ContainsFunc(pods, s.has) }
	for i, f := range a.Findings {
		v := judge(begun, a.About, f)
		busy := a.Load > 2*float64(goruntime.NumCPU()) && quoted.MatchString(f.sentence())
		if busy && v.wrong != "" {
			a.Unjudged = append(a.Unjudged, fmt.Sprintf("%s; but the machine was busy (load %.1f): %s", v.wrong, a.Load, f.sentence()))
			v = verdict{of: v.of}
		} else if v.wrong != "" {
			a.wrong(x, cmp.Or(v.of, s), f, v.wrong)
		} else if !v.right {
			a.Unjudged = append(a.Unjudged, f.sentence())
		}
		x.count(f.Rule, v)
		if text := f.sentence(); own && !s.twin && v.wrong == "" && matches(s.says, text) && ours(podsOf(text)) {
			mentioned = &a.Findings[i]
			hit = hit || a.Lasts == nil || *a.Lasts && !f.Over || !*a.Lasts && !f.lasts() // a note never lasts
		}
	}
	if mentioned != nil && !hit {
		how := "it is over, and why says that it lasts"
		if *a.Lasts {
			how = "it lasts, and why says that it is over"
		}
		a.wrong(x, s, *mentioned, how)
	}
	switch {
	case len(a.Wrong) > 0:
		a.Class = "false"
	case !own || s.twin:
		a.Class = "well"
	case hit:
		a.Class = "found"
	default:
		a.Class = "missed"
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.answers = append(x.answers, *a)
	headline := "nothing"
	if len(a.Findings) > 0 {
		headline = fmt.Sprintf("%d findings: %s", len(a.Findings), a.Findings[0])
	}
	n.say("on %d: %s after %.0fs, about %s (kubelet: %s): %s: %s%s", n.pods, s.name, a.After, cmp.Or(a.About, "the node"), a.Pod, a.Class, headline, a.Problem)
}

func (x *exam) count(rule string, v verdict) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.rules[rule] == nil {
		x.rules[rule] = &byRule{}
	}
	switch of := x.rules[rule]; {
	case v.wrong != "":
		of.wrong++
	case v.right:
		of.right++
	default:
		of.undecided++
	}
}

// wrong notes a mistake about a situation. It is the answer's own if that is about the situation, or about no other.
func (a *answer) wrong(x *exam, of *situation, f finding, how string) {
	if of.name == a.Situation || a.About != "" {
		a.Wrong = append(a.Wrong, how)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.lies[fmt.Sprintf("%s on %d: %s: %s", of.name, a.Pods, how, regexp.MustCompile(`\d+`).ReplaceAllString(f.sentence(), "N"))]++
}

func (f finding) String() string {
	when := "lasts"
	if f.Over {
		when = "over"
	}
	return fmt.Sprintf("[%s %s, %s] %s", f.Level, f.Rule, when, f.sentence())
}

// report prints a table, and all mistakes.
func (x *exam) report() {
	for _, f := range x.failed {
		x.t.Errorf("could not be made: %s", f)
	}
	if *actsOnly {
		return
	}
	if *record != "" {
		var lines strings.Builder
		for _, a := range x.answers {
			line, err := json.Marshal(a)
			assert.NoError(x.t, err)
			fmt.Fprintf(&lines, "%s\n", line)
		}
		assert.NoError(x.t, os.WriteFile(filepath.Join(*record, x.set.name+"-answers.jsonl"), []byte(lines.String()), 0o644))
	}
	for _, lie := range slices.Sorted(maps.Keys(x.lies)) {
		x.t.Errorf("false, %d times: %s", x.lies[lie], lie)
	}
	fmt.Fprintln(os.Stderr, "Every answer that people have to judge, or that missed its fault:")
	for _, a := range x.answers {
		if a.Class == "missed" {
			x.t.Errorf("missed: %s on %d after %.0fs, about %q: %q in %v%s", a.Situation, a.Pods, a.After, a.About, a.Says, a.Findings, a.Problem)
		}
		for _, text := range a.Unjudged {
			fmt.Fprintf(os.Stderr, "judge this: %s on %d after %.0fs, about %q: %s\n", a.Situation, a.Pods, a.After, a.About, text)
		}
	}
	text := x.table()
	fmt.Fprint(os.Stderr, text)
	if *reportTo != "" {
		assert.NoError(x.t, markdown.Section(*reportTo, "The "+x.set.name+" set", "cd testbed/why && go test -run "+x.t.Name()+" -report ../../docs/evidence/why.md", text))
	}
}

// table returns what was found, missed and false, by situation and by rule, for a document.
func (x *exam) table() string {
	var w strings.Builder
	counts := map[string]int{}
	fmt.Fprintln(&w, "| situation | with 5 pods | with 30 pods |\n| --- | --- | --- |")
	for _, s := range x.nodes[0].situations {
		name := "`" + s.name + "`"
		if s.twin {
			name += ", which is well"
		}
		fmt.Fprintf(&w, "| %s |", name)
		for _, n := range x.nodes {
			class, each := x.class(n, s)
			counts[class]++
			fmt.Fprintf(&w, " %s |", each)
		}
		fmt.Fprintln(&w)
	}
	fmt.Fprintf(&w, "\n%d answers. By the worst of its answers, %d situations were found, %d missed, %d false, and %d well.\n\n", len(x.answers), counts["found"], counts["missed"], counts["false"], counts["well"])
	fmt.Fprintln(&w, "| rule | true findings | for people to judge | false |\n| --- | --: | --: | --: |")
	for _, rule := range slices.Sorted(maps.Keys(x.rules)) {
		of := x.rules[rule]
		fmt.Fprintf(&w, "| %s | %d | %d | %d |\n", rule, of.right, of.undecided, of.wrong)
	}
	return w.String()
}

// class returns the class of a situation, the worst of its answers, and how many answers have which class.
func (x *exam) class(n *patient, s *situation) (class, each string) {
	counts := map[string]int{}
	for _, a := range x.answers {
		if a.Situation == s.name && a.Pods == n.pods {
			counts[a.Class]++
		}
	}
	for lie := range x.lies { // also in answers to other questions
		if strings.HasPrefix(lie, fmt.Sprintf("%s on %d: ", s.name, n.pods)) {
			counts["false"] = max(1, counts["false"])
		}
	}
	var all []string
	for _, c := range []string{"well", "found", "missed", "false"} {
		if counts[c] == 0 {
			continue
		}
		all = append(all, fmt.Sprintf("%s %d", c, counts[c]))
		class = c
	}
	return class, strings.Join(all, ", ")
}

func (s state) String() string { return [...]string{"lasts", "is over", "lasts or is over"}[s] }

// show prints what kubelet and the runtimes show of a situation's pod: its state, kubelet's last warning about it, and its
// containers. It calls the runtimes, and is only for -acts.
func (p *patient) show(s *situation, when string) {
	who := s.who()
	if who == "" {
		p.say("on %d: %s, %s", p.pods, s.name, when)
		return
	}
	warning := "no warning"
	log, err := os.ReadFile(p.kubelet.LogFile())
	assert.NoError(p.t, err)
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, `"Event occurred"`) && strings.Contains(line, "/"+who+"-"+p.kubelet.NodeName) && strings.Contains(line, `type="Warning"`) {
			warning = strings.TrimSpace(line)
		}
	}
	containers := ""
	for _, c := range []*runtimes.Containerd{p.runtime, p.second} {
		found, err := p.ctr(c, "containers", "ls", `labels."io.kubernetes.pod.name"==`+who+"-"+p.kubelet.NodeName)
		if err != nil {
			found = err.Error()
		}
		if _, rows, _ := strings.Cut(found, "\n"); strings.TrimSpace(rows) != "" {
			containers += "\n\t" + strings.ReplaceAll(strings.TrimSpace(rows), "\n", "\n\t")
		}
	}
	p.say("on %d: %s, %s: kubelet says %s; %s%s", p.pods, s.name, when, p.stateOf(who), warning, containers)
}

// ctr runs ctr on a runtime, among the containers of CRI. It leaves no trace in the recorded calls.
func (p *patient) ctr(c *runtimes.Containerd, args ...string) (string, error) {
	ctx, stop := context.WithTimeout(p.t.Context(), 10*time.Second)
	defer stop()
	return c.Ctr(ctx, append([]string{"-n", "k8s.io"}, args...)...)
}

// stateOf returns what kubelet says of a pod, in a few words.
func (p *patient) stateOf(name string) string {
	if name == "" {
		return "-"
	}
	ctx, stop := context.WithTimeout(p.t.Context(), 2*time.Second)
	defer stop()
	one, err := p.kubelet.Pod(ctx, name)
	if err != nil {
		return "no answer"
	}
	if one == nil {
		return "no pod"
	}
	words := []string{string(one.Status.Phase)}
	for _, c := range slices.Concat(one.Status.InitContainerStatuses, one.Status.ContainerStatuses) {
		switch {
		case c.State.Waiting != nil:
			words = append(words, c.State.Waiting.Reason)
		case c.State.Terminated != nil:
			words = append(words, c.State.Terminated.Reason)
		case !c.Ready:
			words = append(words, "NotReady")
		}
	}
	return strings.Join(words, " ")
}

// changing returns change, one at a time with other changes of the node's kubelet and primary.
func (p *patient) changing(change func() error) func() error {
	return func() error {
		p.changes.Lock()
		defer p.changes.Unlock()
		return change()
	}
}

// ctl runs crictl on criproxy.
func (p *patient) ctl(args ...string) error {
	ctx, stop := context.WithTimeout(p.t.Context(), 20*time.Second)
	defer stop()
	out, err := host.Command(ctx, p.crictl, append([]string{"-t", "15s", "-r", p.proxy.Endpoint(), "-i", p.proxy.Endpoint()}, args...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("crictl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// killShim kills the shim of a pod on the primary.
func (p *patient) killShim(pod string) error {
	pid, err := p.shimOn(p.runtime, pod)
	if err != nil {
		return err
	}
	return unix.Kill(pid, unix.SIGKILL)
}

// badRegistry starts a registry from which a runtime pulls the images of a name, and ends it with the test.
func (p *patient) badRegistry(c *runtimes.Containerd, name string, answer http.HandlerFunc) {
	server := httptest.NewServer(answer)
	p.t.Cleanup(server.Close)
	p.pullsFrom(c, name, server.URL)
}

// pullsFrom makes a runtime pull the images of a registry from a server.
func (p *patient) pullsFrom(c *runtimes.Containerd, name, server string) {
	dir := filepath.Join(c.Dir, "certs.d", name)
	require.NoError(p.t, os.MkdirAll(dir, 0o755))
	text := fmt.Sprintf("server = %q\n[host.%[1]q]\n  capabilities = [\"pull\", \"resolve\"]\n", server)
	require.NoError(p.t, os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(text), 0o644))
}

// networkOf returns the file with the CNI network of a runtime.
func networkOf(c *runtimes.Containerd) string {
	return filepath.Join(c.Dir, "cni", "net.d", "10-testbed.conflist")
}

// usesUpAddresses makes the CNI plugin get, for a pod on the primary, the runtime's network with one address, which another pod has.
func (p *patient) usesUpAddresses(pod string) error {
	var taken error
	err := p.givesNetwork(pod, func(conf map[string]any) {
		pool := conf["ipam"].(map[string]any)["ranges"].([]any)[0].([]any)[0].(map[string]any)
		only := strings.TrimSuffix(pool["gateway"].(string), "1") + "250"
		pool["rangeStart"], pool["rangeEnd"] = only, only
		data := filepath.Join(p.dir, "ipam")
		conf["ipam"] = map[string]any{"type": "host-local", "dataDir": data, "ranges": [][]any{{pool}}}
		folder := filepath.Join(data, conf["name"].(string))
		taken = errors.Join(os.MkdirAll(folder, 0o755), os.WriteFile(filepath.Join(folder, only), []byte("another\r\neth0"), 0o644))
	})
	return errors.Join(err, taken)
}

// givesNetwork writes a line of shell for the CNI plugin's script: for a pod on the primary the plugin gets another configuration,
// which change makes of that of the runtime's network.
func (p *patient) givesNetwork(pod string, change func(conf map[string]any)) error {
	text, err := os.ReadFile(networkOf(p.runtime))
	if err != nil {
		return err
	}
	var list struct {
		Name, CNIVersion string
		Plugins          []map[string]any
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return err
	}
	conf := list.Plugins[0]
	conf["name"], conf["cniVersion"] = list.Name, list.CNIVersion
	change(conf)
	if text, err = json.Marshal(conf); err != nil {
		return err
	}
	file := filepath.Join(p.dir, pod+".conf")
	return both(writes(file, string(text)), writes(filepath.Join(p.cni, "ADD-"+pod), "exec <"+file+"\n"))()
}

// slowlyProbed returns a pod with an exec probe that takes a while, and may take some seconds.
func slowlyProbed(p *corev1.Pod, takes string, atMost int32) *corev1.Pod {
	p = probed(p, "sleep", takes)
	p.Spec.Containers[0].ReadinessProbe.TimeoutSeconds = atMost
	return p
}

// saysGoodbye returns a pod that takes 25 s of its grace period of a minute.
func saysGoodbye(p *corev1.Pod) *corev1.Pod {
	p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"app", "sleep", "25s"}}}}
	return graceful(p, 60)
}

// limited returns a pod whose first container may have so much memory.
func limited(p *corev1.Pod, memory string) *corev1.Pod {
	p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}
	return p
}

// withHostPath returns a pod that mounts a path of the node.
func withHostPath(p *corev1.Pod, path string, kind corev1.HostPathType) *corev1.Pod {
	p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path, Type: &kind}}}}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	return p
}

// loadOfMachine returns how many processes have run or waited for the disk in the last minute, on average.
func loadOfMachine(t *testing.T) (load float64) {
	data, err := os.ReadFile("/proc/loadavg")
	assert.NoError(t, err)
	_, err = fmt.Sscan(string(data), &load)
	assert.NoError(t, err)
	return load
}
