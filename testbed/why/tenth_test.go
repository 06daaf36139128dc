package why_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// This is the tenth set of nodes. Whoever wrote it had read no rule of why, and none of its answers. Its pods have the names of
// trees, so that no pattern matches a name.

// tenthSet is the tenth set of nodes.
var tenthSet = set{
	name: "tenth", situations: (*patient).makeTenthSituations,
	first: func() []*corev1.Pod {
		checked := slowlyProbed(pod("tupelo", "sleep"), "0s", 10)
		checked.Spec.Containers[0].ReadinessProbe.PeriodSeconds = 5
		return []*corev1.Pod{
			pod("idle", "sleep"), onSecond(pod("aged", "sleep"), "testbed/app:1"),
			checked, pod("whitebeam", "tick", "1s"), slowlyProbed(pod("magnolia", "sleep"), "0s", 10),
		}
	},
}

// Two nodes, with 5 and 30 pods, as in TestWhyOnASecondSetOfNodes. It takes ten minutes with the start of the nodes: use
// -timeout 20m, and CRIPROXY_TESTBED_RACE=off. -record and -acts do the same as there.
func TestWhyOnATenthSetOfNodes(t *testing.T) { examine(t, tenthSet) }

// reconfigured is what may be said when criproxy's configuration was changed.
const reconfigured = `configur|reload`

// makeTenthSituations returns what happens on a node: first what fails when a pod starts, several at a time; then what is wrong
// with pods that run, and what people do to criproxy and besides kubelet; at last mistakes in criproxy's configuration. No two
// situations change that configuration at the same time.
//
// A runtime's own error may stand in any answer, as in the fourth set: see acts_test.go. After a failed pull kubelet waits
// longer each time; so no such fault is repaired before its pod is deleted. What runc and the network's plugin are made to say are
// errors that people have reported.
func (p *patient) makeTenthSituations() []*situation {
	runcDir := filepath.Join(p.dir, "runc.d") // a file of it is for one pod, as in the sixth set
	require.NoError(p.t, os.MkdirAll(runcDir, 0o755))
	require.NoError(p.t, writes(p.broken(), fmt.Sprintf("for each in %s/*; do [ -e \"$each\" ] && . \"$each\"; done\n", runcDir))())

	p.pushWithLink("testbed/orchard:1", "srv/current", "srv/release-7")
	p.hosts(p.second, "grove.test", fmt.Sprintf("[host.\"http://%s\"]\n  capabilities = [\"pull\", \"resolve]\n", p.registry.Addr)) // a " is missing
	p.badRegistry(p.runtime, "moved.test", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://"+p.registry.Addr+r.URL.RequestURI(), http.StatusPermanentRedirect)
	})

	overwritten := onSecond(pod("larch", "sleep"), "testbed/app:1")
	overwritten.Spec.Containers[0].Command = []string{"app"} // it is in /bin
	overwritten.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "PATH", Value: "/opt/tools/bin"}}
	tools := p.t.TempDir()
	require.NoError(p.t, os.WriteFile(filepath.Join(tools, "tool"), []byte("#!/bin/bash\necho there is no bash in the image\n"), 0o755))
	script := withHostPath(pod("hawthorn"), tools, corev1.HostPathUnset)
	script.Spec.Containers[0].Command = []string{"/data/tool"}
	ends := pod("medlar", "wait", "5s", "then", "exit", "137") // nobody kills it
	ends.Spec.RestartPolicy = corev1.RestartPolicyNever

	daemonAway, network := filepath.Join(p.cni, "ADD-tamarisk"), networkOf(p.second)
	networkText, err := os.ReadFile(network)
	require.NoError(p.t, err)
	mistyped := strings.Replace(string(networkText), `"cniVersion": "1.0.0",`, `"cniVersion": "1.0.0"`, 1) // it lacks a comma
	require.NotEqual(p.t, string(networkText), mistyped)
	hangs := filepath.Join(runcDir, "tupelo")
	var logs string // the folder with the logs of whitebeam

	yaml := p.proxy.YAML
	configure := func(text string) func() error { return func() error { return p.proxy.Configure(text) } }
	agent := filepath.Join(p.proxy.Dir, "agent.sock")
	without, _, found := strings.Cut(yaml, "- name: "+old)
	require.True(p.t, found)
	elsewhere := strings.Replace(yaml, p.second.Socket(), filepath.Join(p.second.Dir, "contianerd.sock"), 1) // there is no such file
	require.NotEqual(p.t, yaml, elsewhere)

	return []*situation{
		// What fails when a pod starts.
		{
			name: "layer-links-to-a-file-that-is-nowhere", pod: "hornbeam", runtime: old, at: seconds(4), claims: "registry file", // its builder is wrong
			says: `\blink|layer|extract|unpack|archive|\btar\b|release-7|no such file`,
			denies: `unauthori[sz]ed|pull secret|certificate|no space|volume|symbolic|registry (refuse|limit|want|is (gone|down|away|slow))|` +
				programMissing + "|" + imageAbsent,
			acts: []act{{0, p.adds(onSecond(pod("hornbeam", "sleep"), "testbed/orchard:1"))}, {seconds(95), p.ends("hornbeam")}},
			asks: []ask{{seconds(30), lasts}, {seconds(82), lasts}, {seconds(126), over}},
		},
		{
			name: "digest-is-gone", pod: "quince", runtime: old, at: seconds(6), claims: "registry", // the registry has removed what no tag names
			says:   `not found|\b404\b|(does not|doesn't|no longer) exist|digest|sha256|(manifest|name) (is )?unknown|unknown manifest|has no `,
			denies: `unauthori[sz]ed|pull secret|certificate|no space|corrupt|damaged|(mistyped|misspelled|wrong) tag|tag (is|was|has been) `,
			acts: []act{
				{0, p.adds(onSecond(pod("quince", "sleep"), "testbed/app@sha256:"+strings.Repeat("0f1e2d3c", 8)))}, {seconds(95), p.ends("quince")},
			},
			asks: []ask{{seconds(33), lasts}, {seconds(83), lasts}, {seconds(129), over}},
		},
		{
			name: "hosts-file-mistyped", pod: "hickory", runtime: old, at: seconds(8), claims: "registry", // hosts.toml of that registry
			says: `toml|\bpars|syntax|configur|certs\.d|unclosed|unterminated|terminat|invalid|unexpected|newline|character|string\b|` +
				`\bhosts? (file|folder|dir|conf)`,
			denies: `unauthori[sz]ed|pull secret|certificate|no space|no such host|refused|reset|` + imageAbsent,
			acts:   []act{{0, p.adds(withImage(onSecond(pod("hickory", "sleep"), ""), old+"/grove.test/testbed/app:1"))}, {seconds(95), p.ends("hickory")}},
			asks:   []ask{{seconds(36), lasts}, {seconds(84), lasts}, {seconds(132), over}},
		},
		{
			name: "search-path-overwritten", pod: "larch", runtime: old, at: seconds(10), claims: "file memory", // by the pod's environment
			says: `\bPATH\b|executable|environment|not (be )?found`,
			denies: `no such file|permission|image (lacks|has no|does not|doesn't)|(missing (in|from)|not in|not (part|contained) (of|in)) (the|its) image|` +
				imageAbsent + "|" + outOfMemory,
			acts: []act{{0, p.adds(overwritten)}, {seconds(95), p.ends("larch")}},
			asks: []ask{{seconds(39), lasts}, {seconds(85), lasts}, {seconds(135), over}},
		},
		{
			name: "no-room-for-seccomp-filters", pod: "mulberry", runtime: primary, at: seconds(12), claims: "file memory", // bpf_jit_limit is too low
			says: `seccomp|\bbpf\b|\b524\b|\bjit\b|filter`,
			denies: `no such file|no space|profile (is|was|does|did)|apparmor|selinux|\bcni\b|killed|(pod|container|program)('s)? memory|` +
				programMissing,
			acts: []act{
				{0, both(p.runcFails(runcDir, "mulberry", "runc create failed: unable to start container process: error during container init: "+
					"unable to init seccomp: error loading seccomp filter into kernel: error loading seccomp filter: errno 524"),
					p.adds(pod("mulberry", "sleep")))},
				{seconds(95), p.ends("mulberry")},
			},
			asks: []ask{{seconds(42), lasts}, {seconds(86), lasts}, {seconds(138), over}},
		},
		{
			name: "runc-is-killed", pod: "baobab", runtime: primary, at: seconds(14), claims: "file memory", // by an agent that guards the node; people guess why
			says:   `\bkill|signal|\b137\b|\brunc\b|oci runtime`,
			denies: `\bcni\b|grace|no space|permission|(registry|volume) (is|was|does|did)|shim (died|is gone|was killed)|` + programMissing,
			acts:   []act{{0, both(p.onRunc(runcDir, "baobab", "kill -9 $$"), p.adds(pod("baobab", "sleep")))}, {seconds(95), p.ends("baobab")}},
			asks:   []ask{{seconds(45), lasts}, {seconds(87), lasts}, {seconds(141), over}},
		},
		{
			name: "oom-score-cannot-be-set", pod: "mahogany", runtime: primary, at: seconds(16), claims: "file memory", // a node in a container
			says:   `oom_?score|permission|EACCES|\brunc\b|oci runtime`,
			denies: `no such file|executable|unauthori[sz]ed|apparmor|volume|\bmemory\b|oom[- ]?kill|\boom\b|killed|` + programMissing,
			acts: []act{
				{0, both(p.runcFails(runcDir, "mahogany", "runc create failed: unable to start container process: error during container init: "+
					"write /proc/self/oom_score_adj: permission denied"), p.adds(pod("mahogany", "sleep")))},
				{seconds(95), p.ends("mahogany")},
			},
			asks: []ask{{seconds(47), lasts}, {seconds(88), lasts}, {seconds(143), over}},
		},
		{
			name: "daemon-of-the-network-is-away", pod: "tamarisk", runtime: primary, at: seconds(18), claims: "network file",
			says:   `cilium|agent|daemon|plugin|\bcni\b|network`,
			denies: `no (more |free )?(ip )?address|plugin (binary |program )?(is missing|is not installed|is not there)|refused|killed|volume|` + programMissing,
			acts: []act{
				{0, both(p.pluginFails("tamarisk", "unable to connect to Cilium agent: failed to create cilium agent client after 30.000000 seconds timeout: "+
					`Get "http://localhost/v1/config": dial unix /var/run/cilium/cilium.sock: connect: no such file or directory`+"\nIs the agent running?"),
					p.adds(pod("tamarisk", "sleep")))},
				{seconds(55), removes(daemonAway)}, {seconds(96), p.ends("tamarisk")},
			},
			asks: []ask{{seconds(30), lasts}, {seconds(49), lasts}, {seconds(90), over}, {seconds(144), over}},
		},
		{
			name: "registry-has-moved", twin: true, pod: "catalpa", runtime: primary, at: seconds(20), // and says where it is
			acts: []act{{0, p.adds(withImage(pod("catalpa", "sleep"), "moved.test/testbed/other:1"))}, {seconds(95), p.ends("catalpa")}},
			asks: []ask{{seconds(51), either}, {seconds(90), either}},
		},
		{
			name: "script-lacks-its-interpreter", twin: true, pod: "hawthorn", runtime: primary, at: seconds(22), claims: "file", // it starts, and ends
			says: `exec|bash|interpret|no such file|exit|crash|restart|again|back-?off`,
			denies: `permission|/data/tool (is missing|does not exist|was not found)|` +
				`(program|command|executable|binary|entry ?point|image) (is missing|does not exist|was not found|is lacking)|` + outOfMemory,
			acts: []act{{0, p.adds(script)}, {seconds(95), p.ends("hawthorn")}},
			asks: []ask{{seconds(52), either}, {seconds(91), either}, {seconds(145), either}},
		},
		{
			name: "ends-with-137-by-itself", twin: true, pod: "medlar", runtime: primary, at: seconds(24), // and is not to start again
			says:   `\b137\b|exit|ended|fail|\bcode\b`,
			denies: `memory|\boom|(is|was|been|got) killed|crash|restart`,
			acts:   []act{{0, p.adds(ends)}, {seconds(95), p.ends("medlar")}},
			asks:   []ask{{seconds(53), either}, {seconds(92), either}},
		},
		{
			name: "probe-ends-with-127", twin: true, pod: "redwood", runtime: primary, at: seconds(26), claims: "probe", // its program says so
			says:   `probe|exit|\b127\b|not (yet )?ready`,
			denies: `no such file|not found|not installed|tim(e|ed)[ -]?out|` + programMissing,
			acts:   []act{{0, p.adds(probed(pod("redwood", "sleep"), "nonsense"))}, {seconds(95), p.ends("redwood")}},
			asks:   []ask{{seconds(54), either}, {seconds(93), either}, {seconds(146), either}},
		},

		// What is wrong with pods that run, and what people do to criproxy and besides kubelet.
		{
			name: "agent-may-only-read", twin: true, at: seconds(128), // and tries more, at a socket of its own
			says:     byHand + `|denied|not allow|may (not|only)|read-only|agent\.sock|` + reconfigured,
			everyone: byHand + `|PermissionDenied|permission denied|agent\.sock|` + reconfigured,
			denies:   `kubelet (is|was|does|did|cannot|may)`,
			acts: []act{
				{0, configure(yaml + "listeners:\n- path: " + agent + "\n  access:\n  - methods: [read-only]\n")},
				{seconds(4), p.triesToStop(agent)}, {seconds(28), configure(yaml)},
			},
			asks: []ask{{seconds(14), either}, {seconds(46), either}},
		},
		{
			name: "paused-for-a-moment", twin: true, pod: "magnolia", runtime: primary, at: seconds(152), claims: "probe", // by a backup, with ctr
			says:   `paus|freez|frozen|froze|probe`,
			denies: `hang|hung|tim(e|ed)[ -]?out|crash|killed|longer than`,
			acts:   []act{{0, p.onTask("pause", "magnolia")}, {seconds(3), p.onTask("resume", "magnolia")}},
			asks:   []ask{{seconds(21), either}, {seconds(56), either}},
		},
		{
			name: "folder-of-logs-removed", pod: "whitebeam", runtime: primary, at: seconds(160), claims: "file", // by who frees space in /var/log
			says: `ReopenContainerLog|\blogs?\b`,
			denies: `no space|\bdisks? (is|was|has)|volume|permission|(container|program) crash|too (big|large|long)|` +
				programMissing + "|" + outOfMemory,
			acts: []act{
				{0, func() (err error) {
					if logs, err = p.logsOf("whitebeam"); err != nil {
						return err
					}
					return os.RemoveAll(filepath.Dir(logs)) // kubelet wants a new file there, every ten seconds
				}},
				{seconds(66), func() error { return os.MkdirAll(logs, 0o755) }}, {seconds(104), p.ends("whitebeam")},
			},
			asks: []ask{{seconds(32), lasts}, {seconds(60), lasts}, {seconds(96), over}, {seconds(136), over}},
		},
		{
			name: "exec-hangs", pod: "tupelo", runtime: primary, at: seconds(163), claims: "probe slow runtime shim file memory", // runc does, not the probe's program
			says: `(exec\w*|probe|\brunc|command|call)\b.*(under way|\bnot\b|hang|hung|still|slow|since|wait|answer|for \d|tim(e|ed)\b|longer|more than|deadline|never)`,
			denies: `\b(primary|containerd) (hangs|hung|is (frozen|silent|gone|away|down))|\bpaus|no such file|\bcni\b|\bpull(s|ing)?\b|` +
				programMissing + "|" + outOfMemory,
			everyone: `stats\b|\bshim\b`, // the shim may answer nothing meanwhile
			acts: []act{
				{0, p.execWaits(hangs, "tupelo")}, {seconds(64), removes(hangs)}, {seconds(104), p.ends("tupelo")},
			},
			asks: []ask{{seconds(40), lasts}, {seconds(59), lasts}, {seconds(98), over}, {seconds(134), over}},
		},
		{
			name: "second-network-mistyped", pod: "ginkgo", runtime: old, at: seconds(166), claims: "network", // its file is no JSON
			says:     `\bcni\b|network|initiali[sz]ed|json|comma\b`,
			everyone: `\bcni\b|network`,
			denies:   `no (more |free )?(ip )?address|plugin (binary |program )?(is missing|is not installed|is not there)|refused|killed|` + imageAbsent,
			acts: []act{
				{0, both(writes(network, mistyped), p.addsLater(onSecond(pod("ginkgo", "sleep"), "testbed/app:1")))},
				{seconds(50), writes(network, string(networkText))}, {seconds(86), p.ends("ginkgo")},
			},
			asks: []ask{{seconds(28), lasts}, {seconds(45), lasts}, {seconds(82), over}, {seconds(118), over}},
		},
		{
			name: "person-pins-in-vain", twin: true, pod: "chestnut", runtime: primary, at: seconds(170), claims: "file memory", // to a processor that is not there
			says:     byHand + `|UpdateContainerResources|\bcpus?\b|cpuset|processor`,
			everyone: byHand,
			denies:   `kubelet (is|was|does|did|cannot)|crash|killed|` + outOfMemory,
			acts: []act{
				{seconds(-42), p.adds(pod("chestnut", "sleep"))},
				{0, func() error {
					id, _, err := p.process("chestnut")
					if err != nil {
						return err
					}
					for range 3 {
						if p.ctl("update", "--cpuset-cpus", "4096", id) == nil {
							return errors.New("there is such a processor")
						}
					}
					return nil
				}},
				{seconds(85), p.ends("chestnut")},
			},
			asks: []ask{{seconds(18), either}, {seconds(62), either}},
		},
		{
			name: "configuration-rewritten-again-and-again", twin: true, at: seconds(173), // by a tool that deploys it
			says:     reconfigured + `|goneAfter`,
			everyone: reconfigured + `|goneAfter`,
			denies:   `refused|mistake|invalid`,
			acts: []act{
				{0, configure("goneAfter: 12s\n" + yaml)}, {seconds(9), configure("goneAfter: 14s\n" + yaml)},
				{seconds(18), configure("goneAfter: 12s\n" + yaml)}, {seconds(27), configure(yaml)},
			},
			asks: []ask{{seconds(24), either}, {seconds(48), either}},
		},
		{
			name: "moves-to-the-other-runtime", twin: true, pod: "banyan", at: seconds(222), // its manifest has the annotation now
			acts: []act{
				{seconds(-48), p.adds(pod("banyan", "sleep"))},
				{0, p.adds(onSecond(pod("banyan", "sleep"), "testbed/app:1"))}, {seconds(52), p.ends("banyan")},
			},
			asks: []ask{{seconds(13), either}, {seconds(44), either}, {seconds(74), either}},
		},
		{
			name: "new-pods-go-to-the-other-runtime", twin: true, pod: "cypress", runtime: old, at: seconds(232), // its manifest says nothing of it
			says:   `newPodsTo|` + reconfigured,
			denies: `fail|hang|hung|gone|slow|refused`,
			acts: []act{
				{0, configure("newPodsTo: " + old + "\n" + yaml)}, {seconds(4), p.adds(pod("cypress", "sleep"))},
				{seconds(44), p.ends("cypress")}, {seconds(54), configure(yaml)},
			},
			asks: []ask{{seconds(20), either}, {seconds(40), either}, {seconds(68), either}},
		},
		{
			name: "criproxy-is-upgraded", twin: true, at: seconds(292), // its successor takes over its sockets
			says:     `criproxy|hand(s|ed|ing)? ?over|upgrad|successor|another process|new process`,
			everyone: `criproxy\b.*(hand(s|ed|ing)? ?over|upgrad|successor|another process|new process|start)`,
			denies:   `crash|kubelet (is|was|has|restart)|\b(fail|lost)`,
			acts: []act{{0, func() error {
				_, err := p.proxy.HandOver(p.t.Context())
				return err
			}}},
			asks: []ask{{seconds(8), either}, {seconds(18), either}},
		},

		// Mistakes in criproxy's configuration.
		{
			name: "runtime-dropped-from-the-configuration", runtime: old, at: seconds(314), claims: "runtime gone slow", // while it has pods
			says: `old\.io\b.*(remov|configur|unknown|no longer|gone|away|missing|unavailable|dropped|not (known|configured|there|in|have|exist))|` +
				`(\bno|\bnot|unknown|which|what|remov\w*|without|lacks)\b.*old\.io`,
			everyone: `old\.io\b.*(remov|configur|unknown|no longer|missing|dropped|not (known|configured|there|in|have|exist))|` +
				`(\bno|\bnot|unknown|which|what|remov\w*|without|lacks)\b.*old\.io|reserved|` + reconfigured + "|" + secondCameBack,
			denies: `\bcni\b|unauthori[sz]ed|pull secret|no space|` + imageAbsent + "|" + outOfMemory,
			acts:   []act{{0, configure(without)}, {seconds(58), configure(yaml)}},
			asks:   []ask{{seconds(36), lasts}, {seconds(53), lasts}, {seconds(82), over}},
		},
		{
			name: "address-of-the-runtime-mistyped", runtime: old, at: seconds(402), claims: "runtime gone file slow",
			says:     secondCameBack + `|contianerd|old\.io\b.*(not answer|no such file|now at|no longer|reach|missing|connect)`,
			everyone: secondCameBack + `|contianerd|old\.io\b.*(not answer|no such file|now at|no longer|reach|missing|connect)|` + reconfigured,
			denies:   `crash|frozen|killed|\bcni\b|no space|` + imageAbsent + "|" + programMissing + "|" + outOfMemory,
			acts:     []act{{0, configure(elsewhere)}, {seconds(56), configure(yaml)}},
			asks:     []ask{{seconds(34), lasts}, {seconds(51), lasts}, {seconds(78), over}},
		},
	}
}

// pushWithLink puts an image into the registry that is testbed/app:1 with one more layer, which only has a hard link to a file that
// no layer has.
func (p *patient) pushWithLink(image, name, to string) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	require.NoError(p.t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: to, Mode: 0o644}))
	require.NoError(p.t, w.Close())
	made, err := mutate.AppendLayers(p.pushed("testbed/app:1"), static.NewLayer(archive.Bytes(), types.OCIUncompressedLayer))
	require.NoError(p.t, err)
	require.NoError(p.t, p.registry.Push(image, made))
}

// logsOf returns the folder with the logs of a pod's container. The folder that it is in is the pod's.
func (p *patient) logsOf(pod string) (string, error) {
	found, err := filepath.Glob(filepath.Join(p.kubelet.Dir, "logs", "testbed_"+pod+"-"+p.kubelet.NodeName+"_*", "app"))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("not one folder with the logs of %s: %q, %v", pod, found, err)
	}
	return found[0], nil
}

// execWaits returns the act after which runc waits, before it runs a command in the container of a pod, until a file of its script
// is removed.
func (p *patient) execWaits(file, pod string) func() error {
	return func() error {
		id, _, err := p.process(pod)
		if err != nil {
			return err
		}
		return writes(file, fmt.Sprintf("case \" $* \" in *\" exec \"*%s*) while [ -e %s ]; do sleep 1; done ;; esac\n", id, file))()
	}
}

// triesToStop returns the act that asks a socket of criproxy for the list of containers, which it may, and to stop one, which it may
// not.
func (p *patient) triesToStop(socket string) func() error {
	return func() error {
		to, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err
		}
		defer to.Close()
		ctx, stop := context.WithTimeout(p.t.Context(), 15*time.Second)
		defer stop()
		client := runtimeapi.NewRuntimeServiceClient(to)
		if _, err := client.ListContainers(ctx, &runtimeapi.ListContainersRequest{}, grpc.WaitForReady(true)); err != nil {
			return err
		}
		for range 5 {
			_, err := client.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: strings.Repeat("deadbeef", 8)})
			if status.Code(err) != codes.PermissionDenied {
				return fmt.Errorf("it may stop a container: %v", err)
			}
		}
		return nil
	}
}
