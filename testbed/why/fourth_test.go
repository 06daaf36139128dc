package why_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// This is the fourth set of nodes. Whoever wrote it had read no rule of why, and none of its answers. Its pods have the names
// of birds, so that no pattern matches a name.

// fourthSet is the fourth set of nodes.
var fourthSet = set{
	name: "fourth", situations: (*patient).makeFourthSituations,
	first: func() []*corev1.Pod {
		return []*corev1.Pod{
			pod("idle", "sleep"), onSecond(pod("aged", "sleep"), "testbed/app:1"),
			slowlyProbed(pod("merlin", "sleep"), "0s", 10), pod("wren", "sleep"),
		}
	},
}

// Two nodes, with 5 and 30 pods, as in TestWhyOnASecondSetOfNodes. It takes ten minutes with the start of the nodes: use
// -timeout 20m, and CRIPROXY_TESTBED_RACE=off. -record and -acts do the same as there.
func TestWhyOnAFourthSetOfNodes(t *testing.T) { examine(t, fourthSet) }

// kubeletCameBack is what may be said when kubelet was restarted.
const kubeletCameBack = `kubelet .*(restart|stopp|gone|away|silent|new process|another process|anew|c[ao]me back)`

// makeFourthSituations returns what happens on a node: first what fails when a pod starts, several at a time; then what is
// wrong with a part of a runtime; at last what happens to a whole runtime and to kubelet.
//
// A runtime's own error may stand in any answer. So "memory" is among the claims of each fault whose error is runc's, which may
// mention oom_score_adj, and "file" among those of each that is about a file.
func (p *patient) makeFourthSituations() []*situation {
	// Nobody can mount from the second runtime's disk what another mount namespace shall see.
	secondRoot := filepath.Join(p.second.Dir, "root")
	require.NoError(p.t, unix.Mount("", secondRoot, "", unix.MS_PRIVATE, ""))
	require.NoError(p.t, os.Mkdir(filepath.Join(secondRoot, "data"), 0o755))

	well := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: p.registry.Addr})
	p.pullsFrom(p.runtime, "plain.test", "https://"+p.registry.Addr) // which speaks HTTP
	p.push("testbed/shed:1", func(c *v1.Config) { c.Labels = map[string]string{"shed": "yes"} })
	p.badRegistry(p.second, "depot.test", func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/blobs/") { // they are in another server, where nobody listens
			http.Redirect(w, r, "http://127.0.0.1:1"+r.URL.Path, http.StatusTemporaryRedirect)
			return
		}
		well.ServeHTTP(w, r)
	})
	p.badRegistry(p.runtime, "museum.test", servesOldManifests)
	var awake atomic.Bool
	p.badRegistry(p.second, "attic.test", func(w http.ResponseWriter, r *http.Request) {
		for until := time.Now().Add(time.Minute); !awake.Load() && r.Context().Err() == nil && time.Now().Before(until); {
			time.Sleep(100 * time.Millisecond)
		}
		well.ServeHTTP(w, r)
	})

	profiled := pod("linnet", "sleep")
	profile := "profiles/audit.json"
	profiled.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: &profile},
	}
	unshared := withHostPath(onSecond(pod("dunlin", "sleep"), "testbed/app:1"), filepath.Join(secondRoot, "data"), corev1.HostPathUnset)
	propagation := corev1.MountPropagationHostToContainer
	unshared.Spec.Containers[0].VolumeMounts[0].MountPropagation = &propagation
	unprepared := pod("curlew", "sleep")
	unprepared.Spec.InitContainers = []corev1.Container{{Name: "prepare", Image: image, ImagePullPolicy: corev1.PullIfNotPresent, Args: []string{"exit", "3"}}}
	deaf := pod("egret", "sleep")
	deaf.Spec.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(8080)}}}
	shortLived := pod("siskin", "sleep")
	deadline := int64(25)
	shortLived.Spec.ActiveDeadlineSeconds = &deadline
	unhooked := onSecond(pod("petrel", "sleep"), "testbed/app:1")
	unhooked.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: runs("app", "exit", "1").Exec}}

	unauthorized, hangs := filepath.Join(p.cni, "ADD-osprey"), filepath.Join(p.cni, "ADD-lapwing")
	var state string // runc's folder of the container of merlin
	aside := filepath.Join(p.runtime.Dir, "aside")
	begin, end := p.stutters()

	return []*situation{
		// What fails when a pod starts.
		{
			name: "registry-speaks-http", pod: "heron", runtime: primary, at: seconds(4), claims: "registry",
			says:   `https?\b.*(response|client|plain|instead|scheme|speak|talk|want|expect|server)|\btls\b|insecure`,
			denies: `x509|unknown authority|expired|unauthori[sz]ed|pull secret|(image|tag) (does not|doesn't) exist|no such (image|tag)`,
			acts:   []act{{0, p.adds(withImage(pod("heron", "sleep"), "plain.test/testbed/app:1"))}, {seconds(95), p.ends("heron")}},
			asks:   []ask{{seconds(30), lasts}, {seconds(82), lasts}, {seconds(126), over}},
		},
		{
			name: "blobs-out-of-reach", pod: "plover", runtime: old, at: seconds(6), claims: "registry network",
			says:   `refused|connection|unreachable|127\.0\.0\.1:1\b|\bblobs?\b|storage|(can|could) ?not (be )?(reach|connect)`,
			denies: `unauthori[sz]ed|pull secret|certificate|(image|tag) (does not|doesn't) exist|no such (image|tag)|mistyped|misspel`,
			acts:   []act{{0, p.adds(withImage(onSecond(pod("plover", "sleep"), ""), old+"/depot.test/testbed/shed:1"))}, {seconds(95), p.ends("plover")}},
			asks:   []ask{{seconds(33), lasts}, {seconds(83), lasts}, {seconds(129), over}},
		},
		{
			name: "manifest-of-another-age", pod: "finch", runtime: primary, at: seconds(8), claims: "registry",
			says:   `schema|media ?type|no longer supported|not supported|unsupported|prettyjws|manifest|format`,
			denies: `unauthori[sz]ed|pull secret|certificate|(image|tag) (does not|doesn't) exist|no such (image|tag)|mistyped|misspel`,
			acts:   []act{{0, p.adds(withImage(pod("finch", "sleep"), "museum.test/testbed/app:1"))}, {seconds(95), p.ends("finch")}},
			asks:   []ask{{seconds(36), lasts}, {seconds(84), lasts}, {seconds(132), over}},
		},
		{
			name: "seccomp-profile-missing", pod: "linnet", runtime: primary, at: seconds(10), claims: "file memory",
			says:   `seccomp|audit\.json|security profile`,
			denies: `entry ?point|(program|command|executable|image|volume) (is|was|does|did)|(ran|run) out of memory`,
			acts:   []act{{0, p.adds(profiled)}, {seconds(95), p.ends("linnet")}},
			asks:   []ask{{seconds(39), lasts}, {seconds(85), lasts}, {seconds(135), over}},
		},
		{
			name: "mount-not-shared", pod: "dunlin", runtime: old, at: seconds(12), claims: "file memory",
			says:   `shared|slave|propagat|\bmount`,
			denies: `no such file|not a directory|(volume|path|file|directory) (is missing|does not exist|doesn't exist|is a file)|(ran|run) out of memory`,
			acts:   []act{{0, p.adds(unshared)}, {seconds(95), p.ends("dunlin")}},
			asks:   []ask{{seconds(42), lasts}, {seconds(86), lasts}, {seconds(138), over}},
		},
		{
			name: "init-container-fails", twin: true, pod: "curlew", runtime: primary, at: seconds(14),
			says: `\binit\b|prepare|crash|restart|exit|again|back-?off`,
			acts: []act{{0, p.adds(unprepared)}, {seconds(95), p.ends("curlew")}},
			asks: []ask{{seconds(43), either}, {seconds(87), either}, {seconds(140), either}},
		},
		{
			name: "http-probe-fails", twin: true, pod: "egret", runtime: primary, at: seconds(16), // kubelet asks no runtime for it
			acts: []act{{0, p.adds(deaf)}, {seconds(95), p.ends("egret")}},
			asks: []ask{{seconds(44), either}, {seconds(88), either}},
		},
		{
			name: "deadline-of-the-pod", twin: true, pod: "siskin", runtime: primary, at: seconds(18), // kubelet stops it, as its spec says
			says:   `deadline|kubelet (has |had )?(stop|end|kill)\w*|StopContainer|exit|ended`,
			denies: `did not (answer|end)|by itself`,
			acts:   []act{{0, p.adds(shortLived)}, {seconds(108), p.ends("siskin")}},
			asks:   []ask{{seconds(45), either}, {seconds(100), either}},
		},
		{
			name: "post-start-fails", twin: true, pod: "petrel", runtime: old, at: seconds(20), // as the program of a pod may
			says: `\bhooks?\b|post-?start|exec|exit|crash|restart|again|stop`,
			acts: []act{{0, p.adds(unhooked)}, {seconds(95), p.ends("petrel")}},
			asks: []ask{{seconds(46), either}, {seconds(89), either}},
		},
		{
			name: "plugin-unauthorized", pod: "osprey", runtime: primary, at: seconds(22), claims: "network registry file memory",
			says:   `unauthori[sz]ed|plugin|\bcni\b|ClusterInformation|network`,
			denies: `pull secret|registry (is|was|does|did|refuse|want)|log ?in\b|no (more |free )?(ip )?address|not ready|(ran|run) out of memory`,
			acts: []act{
				{0, both(writes(unauthorized, // as Calico's plugin, when its token has expired
					`printf %s '{"cniVersion":"1.0.0","code":11,"msg":"error getting ClusterInformation: connection is unauthorized: Unauthorized"}'; exit 1`+"\n"),
					p.adds(pod("osprey", "sleep")))},
				{seconds(52), removes(unauthorized)}, {seconds(95), p.ends("osprey")},
			},
			asks: []ask{{seconds(47), lasts}, {seconds(91), over}, {seconds(134), over}},
		},
		{
			name: "killed-by-hand", twin: true, pod: "wren", runtime: primary, at: seconds(24), // and started again
			says:   `137|\bkill|SIGKILL|exit|restart|crash|again`,
			denies: `memory`,
			acts: []act{{0, func() error {
				_, pid, err := p.process("wren")
				if err != nil {
					return err
				}
				return unix.Kill(pid, unix.SIGKILL)
			}}},
			asks: []ask{{seconds(14), either}, {seconds(50), either}},
		},

		// What is wrong with a part of a runtime.
		{
			name: "socket-moved-away", twin: true, runtime: old, at: seconds(142), claims: "runtime gone file slow", // whoever is connected stays so
			says:     `socket|no such file|old\.io .*(gone|away|unavailable|refused|down|reach|not answer|restart|missing)`,
			everyone: `socket|no such file|old\.io .*(gone|away|unavailable|refused|down|reach|not answer|restart|missing)`,
			acts: []act{
				{0, func() error { return os.Rename(p.second.Socket(), p.second.Socket()+".aside") }},
				{seconds(24), func() error { return os.Rename(p.second.Socket()+".aside", p.second.Socket()) }},
			},
			asks: []ask{{seconds(16), either}, {seconds(41), either}},
		},
		{
			name: "runc-forgets-a-container", pod: "merlin", runtime: primary, at: seconds(160), claims: "probe file memory", // as when /run is cleaned up
			says:   `(does not|doesn't|no longer) exist|no such container|not (be )?found|\brunc\b|\bstate\b|(exec|probe)\w*\b.*(fail|error|\bnot\b)`,
			denies: `tim(e|ed)[ -]?out|longer than|shim (is|was|did|died|does)|(program|command|binary) (is missing|does not exist)|(ran|run) out of memory`,
			acts: []act{
				{0, func() error {
					id, _, err := p.process("merlin")
					if err != nil {
						return err
					}
					state = filepath.Join(p.runtime.Dir, "runc", "k8s.io", id)
					return os.Rename(state, aside)
				}},
				{seconds(64), func() error { return os.Rename(aside, state) }}, {seconds(102), p.ends("merlin")},
			},
			asks: []ask{{seconds(28), lasts}, {seconds(58), lasts}, {seconds(96), over}, {seconds(134), over}},
		},
		{
			name: "start-hangs", pod: "teal", runtime: primary, at: seconds(163), claims: "slow runtime shim memory", // as when a dead NFS is mounted
			says: `(StartContainer|start\w*|creat\w*|runc|shim)\b.*(under way|still|hang|hung|slow|\bnot\b|since|wait|for \d)`,
			denies: `\b(primary|containerd) (hangs|hung|is (frozen|silent|gone|away|down))|\bcni\b|\bpull(s|ing)?\b|` +
				`(ran|run) out of memory`,
			everyone: `stats\b|\bshim\b`, // the shim answers nothing meanwhile
			acts: []act{
				{0, both(writes(p.broken(), p.startsLater("teal")), p.adds(pod("teal", "sleep")))},
				{seconds(66), removes(p.broken())}, {seconds(106), p.ends("teal")},
			},
			asks: []ask{{seconds(30), lasts}, {seconds(59), lasts}, {seconds(98), over}, {seconds(136), over}},
		},
		{
			name: "network-namespace-lost", pod: "avocet", runtime: primary, at: seconds(166), claims: "network file memory",
			says: `name ?space|netns|\bno (ip|address)|without (an? )?(ip|address)|lost (its )?(ip|address|network)|` +
				`(sandbox|StopPodSandbox|RunPodSandbox)\b.*(replac|anew|again|\bnew\b|stopp|another|second|once more)`,
			denies: `no (more |free )?(ip )?address(es)? (is |are )?(left|available|free)|\bshim (died|is|was)|plugin .*missing|(ran|run) out of memory`,
			acts: []act{
				{seconds(-30), p.adds(pod("avocet", "sleep"))},
				{0, func() error { return p.losesNetwork("avocet") }}, {seconds(106), p.ends("avocet")},
			},
			asks: []ask{{seconds(33), either}, {seconds(68), over}, {seconds(138), over}},
		},
		{
			name: "person-runs-a-pod", twin: true, pod: "bittern", runtime: primary, at: seconds(169), // kubelet ends it, as it does not know it
			says: `crictl|by hand|(another|other|different) client|not (by |of |from |known )?(to )?kubelet|unknown to kubelet|` +
				`kubelet (has |had )?(remov|stop|end|delet|kill)\w*|kubelet (does|did) not know`,
			acts: []act{{0, func() error {
				file := filepath.Join(p.dir, "bittern.json")
				text, err := json.Marshal(p.runtime.PodConfig("bittern-" + p.kubelet.NodeName))
				if err != nil {
					return err
				}
				return errors.Join(os.WriteFile(file, text, 0o644), p.ctl("runp", file))
			}}},
			asks: []ask{{seconds(36), either}, {seconds(72), either}},
		},
		{
			name: "inodes-used-up", pod: "magpie", runtime: old, at: seconds(172), claims: "disk file memory",
			says:     `no space|inode|\bdisk\b|device is full`,
			everyone: `no space|inode|\bdisk\b|device is full`,
			denies:   `memory limit|(ran|run) out of memory`,
			acts: []act{
				{0, both(p.allowsFiles(2), p.adds(onSecond(pod("magpie", "sleep"), "testbed/app:1")))},
				{seconds(65), p.allowsFiles(1 << 16)}, {seconds(101), p.ends("magpie")},
			},
			asks: []ask{{seconds(38), lasts}, {seconds(57), lasts}, {seconds(96), over}, {seconds(137), over}},
		},

		// What happens to a whole runtime, and to kubelet.
		{
			name: "cgroup-driver-mismatch", pod: "puffin", runtime: old, at: seconds(276), claims: "runtime gone slow file memory",
			says:     `cgroup|systemd`,
			everyone: `cgroup|systemd|old\.io .*(restart|gone|away|down|unavailable|refused|new process|another process|anew|ended|stopped)`,
			denies:   `(ran|run) out of memory|memory limit`,
			acts: []act{
				{0, p.configures("BinaryName =", "SystemdCgroup = true\nBinaryName =")},
				{seconds(7), p.adds(onSecond(pod("puffin", "sleep"), "testbed/app:1"))},
				{seconds(46), p.configures("SystemdCgroup = true\n", "")}, {seconds(83), p.ends("puffin")},
			},
			asks: []ask{{seconds(38), lasts}, {seconds(73), over}, {seconds(112), over}},
		},
		{
			name: "sandbox-name-reserved", pod: "lapwing", runtime: primary, at: seconds(336), claims: "network kubelet slow runtime memory",
			says: `reserved|\bname\b.*(in use|taken|held)|RunPodSandbox\b.*(under way|still|earlier|first|previous|cancel|\bnot\b|fail)|` +
				`(earlier|first|previous|old|other) .*RunPodSandbox|\bcni\b|network|plugin`,
			denies:   `\b(primary|containerd) (hangs|hung|is (frozen|silent|gone|away|down))|no (more |free )?(ip )?address`,
			everyone: kubeletCameBack,
			acts: []act{
				// The plugin's child goes on when the call is cancelled, and so the call does not end: it keeps the name.
				{0, both(writes(hangs, fmt.Sprintf("(while [ -e %s ]; do sleep 1; done)\n", hangs)), p.adds(pod("lapwing", "sleep")))},
				{seconds(14), p.changing(func() error {
					if err := p.kubelet.Terminate(p.t.Context()); err != nil {
						return err
					}
					return p.kubelet.Start(p.t.Context())
				})},
				{seconds(66), removes(hangs)}, {seconds(102), p.ends("lapwing")},
			},
			asks: []ask{{seconds(43), lasts}, {seconds(60), lasts}, {seconds(98), over}, {seconds(134), over}},
		},
		{
			name: "pull-cut-short", twin: true, pod: "kestrel", runtime: old, at: seconds(339), claims: "kubelet registry slow", // by kubelet's restart
			says:     kubeletCameBack + `|cancel|interrupt|cut short|\bpull`,
			denies:   `unauthori[sz]ed|certificate|refused|(image|tag) (does not|doesn't) exist|no such (image|tag)|registry (is|was) (gone|down|away)`,
			everyone: kubeletCameBack,
			acts: []act{
				{0, p.adds(withImage(onSecond(pod("kestrel", "sleep"), ""), old+"/attic.test/testbed/app:1"))},
				{seconds(18), func() error { awake.Store(true); return nil }}, {seconds(97), p.ends("kestrel")},
			},
			asks: []ask{{seconds(47), either}, {seconds(92), either}},
		},
		{
			name: "runtime-stutters", runtime: old, at: seconds(400), claims: "runtime slow",
			says:     `old\.io .*(slow|silent|answer|froze|late|paus|stall|hang|hung|stutter|under way|(took|takes|up to|for) \d)`,
			everyone: `old\.io .*(slow|silent|answer|froze|late|paus|stall|hang|hung|stutter|under way|(took|takes|up to|for) \d)`,
			acts:     []act{{0, begin}, {seconds(60), end}},
			asks:     []ask{{seconds(30), lasts}, {seconds(55), lasts}, {seconds(80), over}},
		},
	}
}

// servesOldManifests is a registry that has only manifests of schema 1, from the first years of Docker.
func servesOldManifests(w http.ResponseWriter, r *http.Request) {
	const manifest = `{"schemaVersion":1,"name":"testbed/app","tag":"1","architecture":"amd64","fsLayers":[],"history":[],"signatures":[]}`
	if !strings.Contains(r.URL.Path, "/manifests/") {
		http.NotFound(w, r)
		return
	}
	digest, _, err := v1.SHA256(strings.NewReader(manifest))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/vnd.docker.distribution.manifest.v1+prettyjws")
	w.Header().Set("Docker-Content-Digest", digest.String())
	w.Header().Set("Content-Length", fmt.Sprint(len(manifest)))
	fmt.Fprint(w, manifest)
}

// startsLater returns a piece of shell for the script of runc: it makes the container of a pod, not its sandbox, only when the
// script is removed.
func (p *patient) startsLater(pod string) string {
	return fmt.Sprintf(`case " $* " in *" create "*)
	words="$* "; bundle=${words#*--bundle }; bundle=${bundle%%%% *}
	if grep -q %s-%s "$bundle/config.json" && grep -q 'container-type": *"container"' "$bundle/config.json"; then
		while [ -e %s ]; do sleep 1; done
	fi ;;
esac
`, pod, p.kubelet.NodeName, p.broken())
}

// losesNetwork unmounts the network namespace of a pod on the primary, and ends its program, so that kubelet looks at the pod.
func (p *patient) losesNetwork(pod string) error {
	_, pid, err := p.process(pod)
	if err != nil {
		return err
	}
	namespace, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid)) // net:[4026532001]
	if err != nil {
		return err
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(mounts)) {
		if words := strings.Fields(line); len(words) > 4 && words[3] == namespace {
			return errors.Join(unix.Unmount(words[4], unix.MNT_DETACH), unix.Kill(pid, unix.SIGTERM))
		}
	}
	return fmt.Errorf("%s of %s is not mounted", namespace, pod)
}

// allowsFiles returns the act after which the file system of the second runtime may hold so many files more than then.
func (p *patient) allowsFiles(more uint64) func() error {
	return func() error {
		root := filepath.Join(p.second.Dir, "root")
		var now unix.Statfs_t
		if err := unix.Statfs(root, &now); err != nil {
			return err
		}
		return unix.Mount("tmpfs", root, "tmpfs", unix.MS_REMOUNT, fmt.Sprintf("nr_inodes=%d", now.Files-now.Ffree+more))
	}
}

// configures returns the act that replaces a text in the configuration of the second runtime, and starts it again.
func (p *patient) configures(before, after string) func() error {
	return func() error {
		file := filepath.Join(p.second.Dir, "config.toml")
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		changed := strings.ReplaceAll(string(text), before, after)
		if changed == string(text) {
			return fmt.Errorf("%s does not contain %q", file, before)
		}
		return errors.Join(os.WriteFile(file, []byte(changed), 0o644), p.second.Terminate(p.t.Context()), p.second.Start(p.t.Context()))
	}
}

// stutters returns the acts between which the second runtime stands still for eight of nine seconds.
func (p *patient) stutters() (begin, end func() error) {
	ctx, stop := context.WithCancel(p.t.Context())
	done := make(chan error, 1)
	wait := func(d time.Duration) {
		select {
		case <-ctx.Done():
		case <-time.After(d):
		}
	}
	begin = func() error {
		go func() {
			var err error
			for ctx.Err() == nil && err == nil {
				err = p.second.Freeze()
				wait(8 * time.Second)
				err = errors.Join(err, p.second.Thaw())
				wait(time.Second)
			}
			done <- err
		}()
		return nil
	}
	end = func() error {
		stop()
		return <-done
	}
	return begin, end
}
