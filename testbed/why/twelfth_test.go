package why_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// This is the twelfth set of nodes. Whoever wrote it had read no rule of why, and none of its answers. Its pods have the names of
// musical instruments, so that no pattern matches a name.

// twelfthSet is the twelfth set of nodes.
var twelfthSet = set{
	name: "twelfth", situations: (*patient).makeTwelfthSituations,
	first: func() []*corev1.Pod {
		return []*corev1.Pod{
			pod("idle", "sleep"), onSecond(pod("aged", "sleep"), "testbed/app:1"),
			oftenProbed("sitar"), pod("banjo", "sleep"), oftenProbed("lute"),
		}
	},
}

// Two nodes, with 5 and 30 pods, as in TestWhyOnASecondSetOfNodes. It takes ten minutes with the start of the nodes: use
// -timeout 20m, and CRIPROXY_TESTBED_RACE=off. -record and -acts do the same as there.
func TestWhyOnATwelfthSetOfNodes(t *testing.T) { examine(t, twelfthSet) }

// makeTwelfthSituations returns what happens on a node: first what fails when a pod starts, several at a time; then what is wrong
// with pods that run, and what people do besides kubelet; at last what is wrong with the second runtime's configuration, with
// criproxy's and with kubelet.
//
// A runtime's own error may stand in any answer: see acts_test.go. After a failed pull kubelet waits longer each time; so no such
// fault is repaired before its pod is deleted. Nobody makes runc say anything here: all its errors are its own.
func (p *patient) makeTwelfthSituations() []*situation {
	well := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: p.registry.Addr})
	swept, _ := p.pushWithFile("testbed/sonata:1", "sonata")
	p.badRegistry(p.runtime, "attic.test", p.blobIsGone(swept, well))
	p.badRegistry(p.runtime, "museum.test", firstSchema)
	p.pullsFrom(p.second, "plain.test", "https://"+p.registry.Addr) // which speaks HTTP
	whole, _ := p.pushWithFile("testbed/fugue:1", "fugue")
	p.badRegistry(p.second, "cache.test", p.alters(whole, well))
	p.badRegistry(p.second, "gate.test", handsOutTokens(well))
	p.push("testbed/coda:1", func(c *v1.Config) { c.StopSignal = "SIGTREM" }) // it should be SIGTERM

	nested := withHostPath(pod("ocarina", "sleep"), p.t.TempDir(), corev1.HostPathUnset)
	nested.Spec.Containers[0].VolumeMounts[0].ReadOnly = true
	nested.Spec.Volumes = append(nested.Spec.Volumes, corev1.Volume{Name: "cache", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	nested.Spec.Containers[0].VolumeMounts = append(nested.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "cache", MountPath: "/data/cache"})
	follows := corev1.MountPropagationHostToContainer
	propagated := withHostPath(onSecond(pod("dulcimer", "sleep"), "testbed/app:1"), p.privateMount(), corev1.HostPathUnset)
	propagated.Spec.Containers[0].VolumeMounts[0].MountPropagation = &follows
	lastWords := pod("euphonium", "sleep")
	lastWords.Spec.Containers[0].TerminationMessagePath = "/etc" // in the image it is a folder
	registers := onSecond(pod("celesta", "sleep"), "testbed/app:1")
	registers.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: runs("/usr/bin/register").Exec}}
	qualified, yes := pod("harmonica", "sleep"), true
	qualified.Spec.SetHostnameAsFQDN, qualified.Spec.Subdomain = &yes, strings.Repeat("string-", 8)+"section"
	slowStart := onSecond(pod("vibraphone", "wait", "25s", "then", "write", "/ready", "yes", "then", "sleep"), "testbed/app:1")
	slowStart.Spec.Containers[0].StartupProbe = &corev1.Probe{ProbeHandler: runs("app", "file", "/ready"), PeriodSeconds: 4, FailureThreshold: 30}
	unstoppable := onSecond(pod("mandolin", "sleep"), "testbed/coda:1")
	unstoppable.Spec.Containers[0].LivenessProbe = &corev1.Probe{
		ProbeHandler: runs("app", "exit", "1"), InitialDelaySeconds: 3, PeriodSeconds: 3, FailureThreshold: 2,
	}

	const message = `{"cniVersion":"1.0.0","code":11,"msg":"the datastore is busy: try again later"}`
	once := fmt.Sprintf("if [ ! -e %[1]s ]; then : >%[1]s; printf %%s '%[2]s'; exit 1; fi\n", filepath.Join(p.dir, "tambourine"), message)
	sweeps, putsBack := p.sweeps("sitar")
	yaml := p.proxy.YAML
	configures := func(text string) func() error { return func() error { return p.proxy.Configure(text) } }
	const shutOut = `permission ?denied|access|not allow|forbid|read-only|listeners|refus|reject|` + reconfigured

	return []*situation{
		// What fails when a pod starts.
		{
			name: "layer-gone-from-the-registry", pod: "bassoon", runtime: primary, at: seconds(4), claims: "registry", // its manifest is there
			says:   `not found|\b404\b|\bblobs?\b|\blayers?\b|content|httpReadSeeker|incomplete|missing`,
			denies: `unauthori[sz]ed|pull secret|certificate|no space|refused|(manifest|tag) (is |was )?unknown|unknown (manifest|tag)|` + imageAbsent,
			acts:   []act{{0, p.adds(withImage(pod("bassoon", "sleep"), "attic.test/testbed/sonata:1"))}, {seconds(95), p.ends("bassoon")}},
			asks:   []ask{{seconds(30), lasts}, {seconds(82), lasts}, {seconds(126), over}},
		},
		{
			name: "manifest-of-the-first-schema", pod: "clarinet", runtime: primary, at: seconds(6), claims: "registry", // containerd 2 has forgotten it
			says: `schema|manifest\.v1|prettyjws|media ?type|support|rebuil|format|convert|too old|outdated|deprecat`,
			denies: `unauthori[sz]ed|pull secret|certificate|no space|refused|(does not|doesn't) (implement|know|have|support) PullImage|` +
				`PullImage (is|was) (not|un)|` + imageAbsent,
			acts: []act{{0, p.adds(withImage(pod("clarinet", "sleep"), "museum.test/testbed/app:1"))}, {seconds(95), p.ends("clarinet")}},
			asks: []ask{{seconds(33), lasts}, {seconds(83), lasts}, {seconds(129), over}},
		},
		{
			name: "registry-speaks-plain-http", pod: "zither", runtime: old, at: seconds(8), claims: "registry network", // hosts.toml says HTTPS
			says:   `http response|\bhttps?\b|\btls\b|plain|insecure|scheme`,
			denies: `x509|unknown authority|expired|not trusted|distrust|no such host|refused|unauthori[sz]ed|pull secret|no space|` + imageAbsent,
			acts:   []act{{0, p.adds(withImage(onSecond(pod("zither", "sleep"), ""), old+"/plain.test/testbed/app:1"))}, {seconds(95), p.ends("zither")}},
			asks:   []ask{{seconds(36), lasts}, {seconds(84), lasts}, {seconds(132), over}},
		},
		{
			name: "layer-altered-on-its-way", pod: "marimba", runtime: old, at: seconds(10), claims: "registry network", // by a cache between them
			says:   `digest|checksum|sha256|expected|corrupt|damage|altered|differ|tamper|\bhash\b|not what`,
			denies: `unauthori[sz]ed|pull secret|certificate|no space|refused|snapshot|` + imageAbsent,
			acts:   []act{{0, p.adds(withImage(onSecond(pod("marimba", "sleep"), ""), old+"/cache.test/testbed/fugue:1"))}, {seconds(95), p.ends("marimba")}},
			asks:   []ask{{seconds(39), lasts}, {seconds(85), lasts}, {seconds(135), over}},
		},
		{
			name: "volume-below-a-volume-that-is-read-only", pod: "ocarina", runtime: primary, at: seconds(12), claims: "file memory",
			says: `read-?only|mount ?point|mkdir|\bmount|volume|/data/cache|nested`,
			denies: `no such file|not a directory|permission|no space|readOnlyRootFilesystem|root file ?system (is|was|of)|\bcni\b|` +
				`(primary|containerd)('s)? (file ?system|root)|` + programAbsent + "|" + outOfMemory,
			acts: []act{{0, p.adds(nested)}, {seconds(95), p.ends("ocarina")}},
			asks: []ask{{seconds(42), lasts}, {seconds(86), lasts}, {seconds(138), over}},
		},
		{
			name: "mount-is-not-shared", pod: "dulcimer", runtime: old, at: seconds(14), claims: "file memory", // and the pod wants to see what is mounted below it
			says: `\bshared\b|\bslave\b|propagat|HostToContainer|\bmount|volume|host ?path`,
			denies: `no such file|not a directory|(path|volume|folder|directory) (does not|doesn't) exist|permission|no space|read-?only|` +
				programAbsent + "|" + outOfMemory,
			acts: []act{{0, p.adds(propagated)}, {seconds(95), p.ends("dulcimer")}},
			asks: []ask{{seconds(45), lasts}, {seconds(87), lasts}, {seconds(141), over}},
		},
		{
			name: "last-words-go-to-a-folder", pod: "euphonium", runtime: primary, at: seconds(16), claims: "file memory", // terminationMessagePath
			says:   `directory|\bfolder|terminat\w* ?message|message ?path|\bmount|volume|/etc\b`,
			denies: `no such file|permission|no space|read-?only|\bcni\b|host ?path (is|was|does)|` + programAbsent + "|" + outOfMemory,
			acts:   []act{{0, p.adds(lastWords)}, {seconds(95), p.ends("euphonium")}},
			asks:   []ask{{seconds(47), lasts}, {seconds(88), lasts}, {seconds(143), over}},
		},
		{
			name: "bridge-has-another-address", pod: "timpani", runtime: primary, at: seconds(18), claims: "network", // that of the network before
			says:   `already has|different|bridge|plugin|\bcni\b|network`,
			denies: addressesOut + `|used up|exhaust|duplicate|conflict with another pod|no space`,
			acts: []act{
				{0, both(p.otherSubnet("timpani"), p.adds(pod("timpani", "sleep")))},
				{seconds(55), removes(filepath.Join(p.cni, "ADD-timpani"))}, {seconds(98), p.ends("timpani")},
			},
			asks: []ask{{seconds(30), lasts}, {seconds(50), lasts}, {seconds(93), over}, {seconds(145), over}},
		},
		{
			name: "post-start-lacks-its-program", pod: "celesta", runtime: old, at: seconds(20), claims: "file memory grace",
			says:   `post-?start|\bhooks?\b|/usr/bin/register|no such file|not found|missing|(does not|doesn't) exist|executable|exec failed`,
			denies: `entry ?point|pre-?stop|tim(e|ed)[ -]?out|permission|volume|` + imageAbsent + "|" + outOfMemory,
			acts:   []act{{0, p.adds(registers)}, {seconds(97), p.ends("celesta")}},
			asks:   []ask{{seconds(51), lasts}, {seconds(89), lasts}, {seconds(147), over}},
		},
		{
			name: "image-name-has-a-capital", twin: true, pod: "cello", runtime: primary, at: seconds(22), // kubelet refuses, and asks no runtime
			says:   `\bname|image|capital|upper|lower|invalid|pars|` + notAsked,
			denies: `not found|unauthori[sz]ed|pull secret|certificate|no space|registry (is|was|does|did|refuse)`,
			acts:   []act{{0, p.adds(withImage(pod("cello", "sleep"), registry+"/testbed/App:1"))}, {seconds(95), p.ends("cello")}},
			asks:   []ask{{seconds(53), either}, {seconds(90), either}},
		},
		{
			name: "host-name-too-long", twin: true, pod: "harmonica", at: seconds(24), // kubelet refuses, and asks no runtime
			says: `host ?name|fqdn|domain|too long|` + notAsked,
			acts: []act{{0, p.adds(qualified)}, {seconds(95), p.ends("harmonica")}},
			asks: []ask{{seconds(54), either}, {seconds(91), either}},
		},
		{
			name: "registry-hands-out-tokens", twin: true, pod: "oboe", runtime: old, at: seconds(26), // the registry gives one to everybody who asks
			acts: []act{{0, p.adds(withImage(onSecond(pod("oboe", "sleep"), ""), old+"/gate.test/testbed/other:1"))}, {seconds(95), p.ends("oboe")}},
			asks: []ask{{seconds(55), either}, {seconds(92), either}},
		},
		{
			name: "network-fails-once", twin: true, pod: "tambourine", runtime: primary, at: seconds(28), claims: "network", // and kubelet tries again
			says:   `\bcni\b|network|plugin|datastore|busy|RunPodSandbox`,
			denies: addressesOut,
			acts: []act{
				{0, both(writes(filepath.Join(p.cni, "ADD-tambourine"), once), p.adds(pod("tambourine", "sleep")))},
				{seconds(95), p.ends("tambourine")},
			},
			asks: []ask{{seconds(56), either}, {seconds(93), either}},
		},
		{
			name: "program-is-done-too-soon", twin: true, pod: "trombone", runtime: primary, at: seconds(30), // with code 0, and kubelet starts it again
			says:   `exit|ended|restart|again|crash|back-?off|complet|\b0\b`,
			denies: `killed|hang|hung|` + outOfMemory,
			acts:   []act{{0, p.adds(pod("trombone", "wait", "3s", "then", "exit", "0"))}, {seconds(95), p.ends("trombone")}},
			asks:   []ask{{seconds(57), either}, {seconds(94), either}, {seconds(146), either}},
		},
		{
			name: "start-takes-its-time", twin: true, pod: "vibraphone", runtime: old, at: seconds(32), claims: "probe file", // its startup probe waits for it
			says:   `probe|exit|not (yet )?(ready|started)`,
			denies: `restart|crash|tim(e|ed)[ -]?out|hang|hung|` + programMissing,
			acts:   []act{{0, p.adds(slowStart)}, {seconds(95), p.ends("vibraphone")}},
			asks:   []ask{{seconds(20), either}, {seconds(58), either}},
		},

		// What is wrong with pods that run, and what people do besides kubelet.
		{
			name: "stop-signal-mistyped", pod: "mandolin", runtime: old, at: seconds(152), claims: "probe grace", // in its image; its liveness probe fails
			says: `signal|SIGTREM|StopContainer|(stop|kill|restart|end|terminat)\w*\b.*(fail|\bnot\b|refus|error|cannot|invalid)|` +
				`(fail|\bnot\b|cannot|error)\w*\b.*(stop|kill|restart|terminat)`,
			denies: `within its grace|did(n't| not) end|uninterruptible|tim(e|ed)[ -]?out|hang|hung|paus|shim|\bcni\b|` + programMissing + "|" + outOfMemory,
			acts:   []act{{0, p.adds(unstoppable)}, {seconds(94), p.ends("mandolin")}},
			asks:   []ask{{seconds(42), lasts}, {seconds(86), lasts}, {seconds(126), over}},
		},
		{
			name: "run-tidied-up", pod: "sitar", runtime: primary, at: seconds(163), claims: "probe file memory", // the folder of its task is gone
			says: `unable to retrieve|log\.json|no such file|\brunc\b|oci runtime|bundle|(exec\w*|probe)\b.*(fail|error|\bnot\b|start)`,
			denies: `tim(e|ed)[ -]?out|longer than|paus|shim (is|was|did|died|does)|entry ?point|\bcni\b|` +
				`(program|command|binary|executable) (is missing|does not exist|was not found|is not (there|in))|` + outOfMemory,
			acts: []act{{0, sweeps}, {seconds(62), putsBack}, {seconds(102), p.ends("sitar")}},
			asks: []ask{{seconds(30), lasts}, {seconds(57), lasts}, {seconds(96), over}, {seconds(134), over}},
		},
		{
			name: "killed-with-ctr", twin: true, pod: "banjo", runtime: primary, at: seconds(167), // and kubelet starts it again
			says:   `exit|ended|\b137\b|\bkill|signal|restart|again|anew`,
			denies: `\boom|crash|hang|hung|` + outOfMemory,
			acts: []act{{0, func() error {
				id, _, err := p.process("banjo")
				if err == nil {
					_, err = p.ctr(p.runtime, "tasks", "kill", "--signal", "SIGKILL", id)
				}
				return err
			}}},
			asks: []ask{{seconds(14), either}, {seconds(60), either}},
		},
		{
			name: "person-inspects-what-is-gone", twin: true, at: seconds(170), // with an id of yesterday
			says:     byHand + `|not found|ContainerStatus|no such container|deadbeef`,
			everyone: byHand,
			denies:   `kubelet (is|was|cannot|lost)|(runtime|primary|old\.io) (is|was|has lost)`,
			acts: []act{{0, func() error {
				for range 3 {
					if p.ctl("inspect", strings.Repeat("deadbeef", 8)) == nil {
						return errors.New("there is such a container")
					}
				}
				return nil
			}}},
			asks: []ask{{seconds(15), either}, {seconds(59), either}},
		},
		{
			name: "image-removed-while-in-use", twin: true, pod: "accordion", runtime: primary, at: seconds(173), // its pod goes on
			says:     byHand + `|RemoveImage|\brmi\b|image`,
			everyone: byHand + `|RemoveImage`,
			denies:   `crash|(does|did|can) ?not (start|run)|not pulled|unauthori[sz]ed`,
			acts: []act{
				{seconds(-45), p.adds(withImage(pod("accordion", "sleep"), registry+"/testbed/other:1"))},
				{0, func() error { return p.ctl("rmi", registry+"/testbed/other:1") }},
				{seconds(95), p.ends("accordion")},
			},
			asks: []ask{{seconds(16), either}, {seconds(64), either}},
		},
		{
			name: "configuration-mistyped", twin: true, at: seconds(176), // so criproxy goes on with what it has
			says:     reconfigured + `|mistake|goneAftr|unknown`,
			everyone: reconfigured + `|goneAftr`,
			denies:   `crash|criproxy (is|was) (gone|down|stopped|restarted)|(primary|old\.io) (is|was)`,
			acts:     []act{{0, configures("goneAftr: 12s\n" + yaml)}, {seconds(30), configures(yaml)}},
			asks:     []ask{{seconds(18), either}, {seconds(52), either}},
		},
		{
			name: "person-tries-curl", twin: true, at: seconds(179), // on criproxy's socket, which speaks HTTP/2 only
			says:     byHand + `|http|preface|protocol|connection`,
			everyone: byHand + `|preface`,
			denies:   `kubelet (is|was|cannot|lost)|(primary|old\.io) (is|was|refuse)`,
			acts:     []act{{0, p.curls}},
			asks:     []ask{{seconds(14), either}, {seconds(55), either}},
		},

		// What is wrong with the second runtime's configuration, with criproxy's and with kubelet.
		{
			name: "two-drivers-of-cgroups", pod: "koto", runtime: old, at: seconds(302), claims: "runtime gone slow file memory", // the runtime's is systemd
			says:     `systemd|cgroup|slice`,
			everyone: secondCameBack + `|systemd|cgroup|not initiali[sz]ed|was (slow|replaced)`,
			denies:   `unauthori[sz]ed|pull secret|no space|permission|` + imageAbsent + "|" + programMissing + "|" + outOfMemory,
			acts: []act{
				{0, p.configures("BinaryName = ", "SystemdCgroup = true\nBinaryName = ")},
				{seconds(6), p.adds(onSecond(pod("koto", "sleep"), "testbed/app:1"))},
				{seconds(54), p.configures("SystemdCgroup = true\n", "")}, {seconds(87), p.ends("koto")},
			},
			asks: []ask{{seconds(32), lasts}, {seconds(50), lasts}, {seconds(83), over}},
		},
		{
			name: "kubelet-may-only-read", at: seconds(397), claims: "probe file", // as somebody limited the main socket, not that of an agent
			says:     shutOut,
			everyone: shutOut,
			denies:   `unauthori[sz]ed|pull secret|apparmor|selinux|seccomp|file ?system|(file|folder|directory|volume)\b.*permission|no such file|\bcni\b|no space`,
			acts: []act{
				{0, configures(yaml + "listeners:\n- path: " + p.proxy.Socket() + "\n  access:\n  - methods: [read-only]\n")},
				{seconds(3), p.adds(pod("kazoo", "sleep"))},
				{seconds(44), configures(yaml)}, {seconds(72), p.ends("kazoo")},
			},
			asks: []ask{{seconds(24), lasts}, {seconds(40), lasts}, {seconds(68), over}},
		},
		{
			name: "kubelet-dies-again-and-again", at: seconds(478), claims: "kubelet", // and somebody starts it each time; the calls show it only indirectly
			says:     kubeletCameBack + `|kubelet\b.*(start|again|times|crash|killed|died|reconnect|gave up|cancel)`,
			everyone: `kubelet`,
			denies:   `froze|hang|hung|\bcni\b|no space|` + outOfMemory,
			acts: []act{{0, p.changing(func() error {
				for range 3 {
					if err := p.kubelet.Kill(); err != nil {
						return err
					}
					time.Sleep(3 * time.Second)
					if err := p.kubelet.Start(p.t.Context()); err != nil {
						return err
					}
					time.Sleep(2 * time.Second)
				}
				return nil
			})}},
			asks: []ask{{seconds(1), either}, {seconds(22), either}},
		},
	}
}

// oftenProbed returns a pod with an exec probe every five seconds.
func oftenProbed(name string) *corev1.Pod {
	one := slowlyProbed(pod(name, "sleep"), "0s", 10)
	one.Spec.Containers[0].ReadinessProbe.PeriodSeconds = 5
	return one
}

// blobIsGone returns a registry that has all that another one has, but for a layer.
func (p *patient) blobIsGone(layer v1.Layer, well http.Handler) http.HandlerFunc {
	digest, err := layer.Digest()
	require.NoError(p.t, err)
	return func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, digest.Hex) {
			well.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"errors":[{"code":"BLOB_UNKNOWN","message":"blob unknown to registry"}]}`)
	}
}

// alters returns a registry that has all that another one has, but the last byte of a layer is another.
func (p *patient) alters(layer v1.Layer, well http.Handler) http.HandlerFunc {
	digest, err := layer.Digest()
	require.NoError(p.t, err)
	reader, err := layer.Compressed()
	require.NoError(p.t, err)
	defer reader.Close()
	content, err := io.ReadAll(reader)
	require.NoError(p.t, err)
	content[len(content)-1] ^= 1
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, digest.Hex) {
			well.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Content-Length", fmt.Sprint(len(content)))
		_, _ = w.Write(content)
	}
}

// firstSchema answers as a registry whose images nobody has built again since 2016.
func firstSchema(w http.ResponseWriter, r *http.Request) {
	if !strings.Contains(r.URL.Path, "/manifests/") {
		return
	}
	text := `{"schemaVersion":1,"name":"testbed/app","tag":"1","architecture":"amd64","fsLayers":[],"history":[],"signatures":[]}`
	w.Header().Set("Content-Type", "application/vnd.docker.distribution.manifest.v1+prettyjws")
	w.Header().Set("Docker-Content-Digest", fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(text))))
	w.Header().Set("Content-Length", fmt.Sprint(len(text)))
	if r.Method != http.MethodHead {
		fmt.Fprint(w, text)
	}
}

// handsOutTokens returns a registry that has all that another one has, for everybody with a token.
func handsOutTokens(well http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/token":
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"token":"anonymous","access_token":"anonymous","expires_in":300}`)
		case r.Header.Get("Authorization") != "":
			well.ServeHTTP(w, r)
		default:
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="http://%s/token",service="gate.test",scope="repository:testbed/other:pull"`, r.Host))
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`)
		}
	}
}

// privateMount returns a folder on which a file system is mounted whose mounts reach nobody else.
func (p *patient) privateMount() string {
	dir := p.t.TempDir()
	require.NoError(p.t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"))
	p.t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	require.NoError(p.t, unix.Mount("", dir, "", unix.MS_PRIVATE, ""))
	return dir
}

// otherSubnet returns the act after which the CNI plugin gets, for a pod on the primary, a network with other addresses on the
// same bridge, and is to give the bridge one of them, as when the network's configuration has changed. The plugin refuses by itself.
func (p *patient) otherSubnet(pod string) func() error {
	return func() error {
		return p.givesNetwork(pod, func(conf map[string]any) {
			conf["isGateway"] = true
			conf["ipam"] = map[string]any{
				"type": "host-local", "dataDir": filepath.Join(p.dir, "ipam-"+pod), "ranges": []any{[]any{map[string]string{"subnet": "198.18.77.0/24"}}},
			}
		})
	}
}

// sweeps returns the acts that move the folder of the task of a pod's container on the primary away, and back.
func (p *patient) sweeps(pod string) (sweeps, putsBack func() error) {
	var folder string
	away := filepath.Join(p.runtime.Dir, "swept-"+pod) // of the same file system
	sweeps = func() error {
		id, _, err := p.process(pod)
		if err != nil {
			return err
		}
		found, err := filepath.Glob(filepath.Join(p.runtime.Dir, "state", "*", "k8s.io", id))
		if err != nil || len(found) != 1 {
			return fmt.Errorf("not one folder of the task of %s: %q, %v", pod, found, err)
		}
		folder = found[0]
		return os.Rename(folder, away)
	}
	return sweeps, func() error { return os.Rename(away, folder) }
}

// curls asks criproxy's socket three times for a page, as curl does.
func (p *patient) curls() error {
	for range 3 {
		one, err := net.DialTimeout("unix", p.proxy.Socket(), 5*time.Second)
		if err != nil {
			return err
		}
		_ = one.SetDeadline(time.Now().Add(2 * time.Second))
		_, err = io.WriteString(one, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nUser-Agent: curl/8.5.0\r\nAccept: */*\r\n\r\n")
		_, _ = io.Copy(io.Discard, one) // whatever it answers
		if err = errors.Join(err, one.Close()); err != nil {
			return err
		}
	}
	return nil
}
