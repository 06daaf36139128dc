package why_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// This is the ninth set of nodes. Whoever wrote it had read no rule of why, and none of its answers. Its pods have the names of
// spices, so that no pattern matches a name.

// ninthSet is the ninth set of nodes.
var ninthSet = set{
	name: "ninth", situations: (*patient).makeNinthSituations,
	first: func() []*corev1.Pod {
		return []*corev1.Pod{
			pod("idle", "sleep"), onSecond(pod("aged", "sleep"), "testbed/app:1"),
			slowlyProbed(pod("lovage", "sleep"), "0s", 10), pod("ginger", "sleep"), pod("turmeric", "sleep"),
		}
	},
}

// Two nodes, with 5 and 30 pods, as in TestWhyOnASecondSetOfNodes. It takes ten minutes with the start of the nodes: use
// -timeout 20m, and CRIPROXY_TESTBED_RACE=off. -record and -acts do the same as there.
func TestWhyOnANinthSetOfNodes(t *testing.T) { examine(t, ninthSet) }

// spare is a runtime that criproxy's configuration names, and that nobody has installed.
const spare = "spare.io"

// makeNinthSituations returns what happens on a node: first what fails when a pod starts, several at a time; then what is wrong
// with pods that run, and what people do besides kubelet; at last what is wrong with criproxy's configuration and with the second
// runtime's.
//
// A runtime's own error may stand in any answer: see acts_test.go. After a failed pull kubelet waits longer each time; so no such
// fault is repaired before its pod is deleted. What runc is made to say are errors that people have reported.
func (p *patient) makeNinthSituations() []*situation {
	runcDir := filepath.Join(p.dir, "runc.d") // a file of it is for one pod
	require.NoError(p.t, os.MkdirAll(runcDir, 0o755))
	require.NoError(p.t, writes(p.broken(), fmt.Sprintf("for each in %s/*; do [ -e \"$each\" ] && . \"$each\"; done\n", runcDir))())
	ofRunc := func(pod string) string { return filepath.Join(runcDir, pod) }

	well := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: p.registry.Addr})
	p.pushEncrypted("testbed/sealed:1")
	cut, _ := p.pushWithFile("testbed/halved:1", "harvest")
	p.badRegistry(p.runtime, "screened.test", p.cutsShort(cut, well))
	p.mutualTLS(p.runtime, "club.test")
	p.misnamed(p.second, "alias.test")
	p.badRegistry(p.runtime, "docker.io", deniesStrangers)
	p.push("testbed/adrift:1", func(c *v1.Config) { c.WorkingDir = "srv/app" })
	p.badRegistry(p.runtime, "embargo.test", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"errors":[{"code":"DENIED","message":"your address is not on the list of allowed networks"}]}`)
	})
	p.badRegistry(p.runtime, "moody.test", failsAtFirst(8*time.Second, well))
	_, harvested := p.pushWithFile("testbed/stored:1", "harvest")
	var awake atomic.Bool // a registry that lets its clients wait
	p.badRegistry(p.runtime, "drowsy.test", func(w http.ResponseWriter, r *http.Request) {
		for until := time.Now().Add(time.Minute); !awake.Load() && r.Context().Err() == nil && time.Now().Before(until); {
			time.Sleep(100 * time.Millisecond)
		}
		well.ServeHTTP(w, r)
	})
	p.pullsFrom(p.second, "cdn.test", "http://cdn.invalid") // no such name, by RFC 2606; a proxy would look it up

	twoFaults := withImage(pod("nutmeg", "sleep"), "embargo.test/testbed/app:1")
	twoFaults.Spec.Containers = append(twoFaults.Spec.Containers, corev1.Container{
		Name: "side", Image: image, ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{"/etc"}, // a folder
	})
	foreign := pod("sumac", "sleep")
	foreign.Spec.OS = &corev1.PodOS{Name: corev1.Windows}
	prepared := pod("paprika", "sleep")
	prepared.Spec.InitContainers = []corev1.Container{{Name: "prepare", Image: image, ImagePullPolicy: corev1.PullIfNotPresent, Args: []string{"wait", "2s"}}}
	always := corev1.ContainerRestartPolicyAlways
	escorted := graceful(pod("saffron", "farewell", "/bye", "20s", "then", "sleep"), 60)
	escorted.Spec.InitContainers = []corev1.Container{{
		Name: "helper", Image: image, ImagePullPolicy: corev1.PullIfNotPresent, Args: []string{"sleep"}, RestartPolicy: &always,
	}}
	revised := func(revision string) func() error {
		one := pod("sorrel", "sleep")
		one.Annotations["revision"] = revision
		return p.adds(one)
	}
	elsewhere := withImage(pod("pepper", "sleep"), spare+"/"+image)
	elsewhere.Annotations["kubernetes.io/target-runtime"] = spare

	forward, forwardNoMore := p.holds(func() ([]string, error) {
		id, err := p.sandboxOf("ginger")
		return []string{"port-forward", id, ":8080"}, err // any port of the machine
	})
	backup, backupNoMore := p.holds(func() ([]string, error) {
		id, _, err := p.process("turmeric")
		return []string{"exec", "--sync", id, "app", "sleep", "150s"}, err
	})

	return []*situation{
		// What fails when a pod starts.
		{
			name: "image-is-encrypted", pod: "anise", runtime: old, at: seconds(4), claims: "registry file", // and nobody has the key here
			says:   `crypt|stream processor|media-?type|ctd-decoder|no processor`,
			denies: `unauthori[sz]ed|pull secret|certificate|no space|corrupt|damaged|` + imageAbsent + "|" + outOfMemory,
			acts:   []act{{0, p.adds(onSecond(pod("anise", "sleep"), "testbed/sealed:1"))}, {seconds(95), p.ends("anise")}},
			asks:   []ask{{seconds(30), lasts}, {seconds(82), lasts}, {seconds(126), over}},
		},
		{
			name: "layer-is-cut-short", pod: "caraway", runtime: primary, at: seconds(6), claims: "registry network", // by a virus scanner between them
			says: `\bEOF\b|incomplete|truncat|\bcut\b|short|connection|broken|interrupt|\bclos(ed|es|ing)|reset|httpReadSeeker|\bcop(y|ied|ying)\b|` +
				`\bblobs?\b|\blayers?\b|download|transfer`,
			denies: `unauthori[sz]ed|pull secret|certificate|no space|` + imageAbsent,
			acts:   []act{{0, p.adds(withImage(pod("caraway", "sleep"), "screened.test/testbed/halved:1"))}, {seconds(95), p.ends("caraway")}},
			asks:   []ask{{seconds(33), lasts}, {seconds(83), lasts}, {seconds(129), over}},
		},
		{
			name: "registry-wants-a-client-certificate", pod: "cardamom", runtime: primary, at: seconds(8), claims: "registry network",
			says:   `certificate|\btls\b|\bcert\b|handshake`,
			denies: `x509|unknown authority|expired|not trusted|distrust|unauthori[sz]ed|pull secret|no space|` + imageAbsent,
			acts:   []act{{0, p.adds(withImage(pod("cardamom", "sleep"), "club.test/testbed/app:1"))}, {seconds(95), p.ends("cardamom")}},
			asks:   []ask{{seconds(36), lasts}, {seconds(84), lasts}, {seconds(132), over}},
		},
		{
			name: "certificate-of-another-name", pod: "chervil", runtime: old, at: seconds(10), claims: "registry",
			says:   `x509|certificate|\btls\b|valid for|127\.0\.0\.2`,
			denies: `unknown authority|expired|not trusted|distrust|unauthori[sz]ed|pull secret|no space|` + imageAbsent,
			acts:   []act{{0, p.adds(withImage(onSecond(pod("chervil", "sleep"), ""), old+"/alias.test/testbed/app:1"))}, {seconds(95), p.ends("chervil")}},
			asks:   []ask{{seconds(39), lasts}, {seconds(85), lasts}, {seconds(135), over}},
		},
		{
			name: "registry-forgotten-in-the-name", pod: "clove", runtime: primary, at: seconds(12), claims: "registry", // and so it is Docker Hub
			says:   `docker\.io|denied|authori[sz]|insufficient|scope|log ?in|does not exist|private|credential|permission`,
			denies: `certificate|no space|refused|(rate|pull) limit|no such host`,
			acts:   []act{{0, p.adds(withImage(pod("clove", "sleep"), "testbed/app:1"))}, {seconds(95), p.ends("clove")}},
			asks:   []ask{{seconds(42), lasts}, {seconds(86), lasts}, {seconds(138), over}},
		},
		{
			name: "working-folder-is-relative", pod: "cumin", runtime: old, at: seconds(14), claims: "file memory", // in the image's configuration
			says:   `\bcwd\b|absolute|relative|work(ing)? ?(dir|folder)|srv/app`,
			denies: `no such file|permission|no space|` + imageAbsent + "|" + programMissing + "|" + outOfMemory,
			acts:   []act{{0, p.adds(onSecond(pod("cumin", "sleep"), "testbed/adrift:1"))}, {seconds(95), p.ends("cumin")}},
			asks:   []ask{{seconds(45), lasts}, {seconds(87), lasts}, {seconds(141), over}},
		},
		{
			name: "session-keys-used-up", pod: "dill", runtime: primary, at: seconds(16), claims: "disk file memory", // kernel.keys.maxkeys
			says: `\bkeys?\b|keyring|quota`,
			denies: `\bdisks? (is|was|of|has|space)|no space|(file ?system|partition|volume|device|store) (is|was) full|inode|\bimages\b|` +
				programMissing + "|" + outOfMemory,
			acts: []act{
				{0, both(p.runcFails(runcDir, "dill", "runc create failed: unable to start container process: error during container init: "+
					"unable to join session keyring: unable to create session key: disk quota exceeded"), p.adds(pod("dill", "sleep")))},
				{seconds(95), p.ends("dill")},
			},
			asks: []ask{{seconds(47), lasts}, {seconds(88), lasts}, {seconds(143), over}},
		},
		{
			name: "runc-is-too-new-for-its-jail", pod: "fennel", runtime: primary, at: seconds(18), claims: "file memory", // a node in LXC
			says:   `sysctl|ip_unprivileged_port_start|permission|\blxc\b|\brunc\b|oci runtime`,
			denies: `no such file|\bcni\b|(image|registry|volume) (is|was|does|did)|` + programMissing + "|" + outOfMemory,
			acts: []act{
				{0, both(p.runcRefusesSandbox(ofRunc("fennel"), "fennel", "runc create failed: unable to start container process: "+
					"error during container init: open sysctl net.ipv4.ip_unprivileged_port_start file: reopen fd 8: permission denied"),
					p.adds(pod("fennel", "sleep")))},
				{seconds(58), removes(ofRunc("fennel"))}, {seconds(98), p.ends("fennel")},
			},
			asks: []ask{{seconds(49), lasts}, {seconds(93), over}, {seconds(145), over}},
		},
		{
			name: "two-faults-in-one-pod", pod: "nutmeg", runtime: primary, at: seconds(20), claims: "registry file memory",
			says:   `\b403\b|forbidden|denied|allowed|is a directory|(dir|fold)\w*\b.*(program|command|execut)|(program|command|execut)\w*\b.*(dir|fold)|"/etc"`,
			denies: `pull secret|certificate|no space|no such file|` + imageAbsent + "|" + outOfMemory,
			acts:   []act{{0, p.adds(twoFaults)}, {seconds(95), p.ends("nutmeg")}},
			asks:   []ask{{seconds(51), lasts}, {seconds(89), lasts}, {seconds(147), over}},
		},
		{
			name: "pod-for-windows", twin: true, pod: "sumac", at: seconds(22), // kubelet refuses, and asks no runtime
			says: `windows|\bos\b|operating system|admi|` + notAsked,
			acts: []act{{0, p.adds(foreign)}, {seconds(95), p.ends("sumac")}},
			asks: []ask{{seconds(53), either}, {seconds(90), either}},
		},
		{
			name: "registry-fails-once", twin: true, pod: "thyme", runtime: primary, at: seconds(24), claims: "registry", // and kubelet pulls again
			says:   `\b503\b|unavailable|unexpected status|registry|\bpull`,
			denies: `unauthori[sz]ed|pull secret|certificate|no space|` + imageAbsent,
			acts:   []act{{0, p.adds(withImage(pod("thyme", "sleep"), "moody.test/testbed/other:1"))}, {seconds(97), p.ends("thyme")}},
			asks:   []ask{{seconds(55), either}, {seconds(91), either}},
		},

		// What is wrong with pods that run, and what people do besides kubelet.
		{
			name: "exec-cannot-join", pod: "lovage", runtime: primary, at: seconds(160), claims: "probe file memory", // the namespaces
			says:   `setns|name ?space|\brunc\b|oci runtime|(exec\w*|probe)\b.*(fail|error|\bnot\b|start)`,
			denies: `tim(e|ed)[ -]?out|longer than|shim (is|was|did|died|does)|(program|command|binary) (is missing|does not exist)|` + outOfMemory,
			acts: []act{
				{0, p.execAlwaysFails(ofRunc("lovage"), "lovage", "exec failed: unable to start container process: error executing setns process: exit status 1")},
				{seconds(66), removes(ofRunc("lovage"))}, {seconds(104), p.ends("lovage")},
			},
			asks: []ask{{seconds(32), lasts}, {seconds(60), lasts}, {seconds(98), over}, {seconds(136), over}},
		},
		{
			name: "snapshot-removed-by-hand", pod: "mace", runtime: primary, at: seconds(163), claims: "file memory", // to make room on the disk
			says: `snapshot|\bparent\b|\bmount|overlay|lowerdir|root ?fs|no such file|\bstat\b|\blayers?\b|unpack`,
			denies: `unauthori[sz]ed|pull secret|certificate|no space|registry (is|was|does|did)|entry ?point|host ?path|` +
				`(program|command|executable|binary|volume) (is missing|is not|was not|does not|did not)|` + imageAbsent + "|" + outOfMemory,
			acts: []act{
				{seconds(-30), func() error { return p.ctl("pull", registry+"/testbed/stored:1") }},
				{0, both(p.losesSnapshot(harvested), p.adds(withImage(pod("mace", "sleep"), registry+"/testbed/stored:1")))},
				{seconds(95), p.ends("mace")},
			},
			asks: []ask{{seconds(36), lasts}, {seconds(84), lasts}, {seconds(132), over}},
		},
		{
			name: "systemd-does-not-answer", pod: "oregano", runtime: primary, at: seconds(166), claims: "file memory", // after daemon-reexec
			says:   `systemd|message bus|\bd-?bus\b|\bunit\b|\bscope\b|cgroup`,
			denies: `no such file|no space|\b(primary|containerd) (hangs|hung|is (frozen|silent|gone|away|down))|` + programMissing + "|" + outOfMemory,
			acts: []act{
				{0, both(p.runcFails(runcDir, "oregano", "runc create failed: unable to start container process: unable to apply cgroup configuration: "+
					`unable to start unit "cri-containerd-oregano.scope": Message recipient disconnected from message bus without replying`),
					p.adds(pod("oregano", "sleep")))},
				{seconds(95), p.ends("oregano")},
			},
			asks: []ask{{seconds(38), lasts}, {seconds(85), lasts}, {seconds(134), over}},
		},
		{
			name: "person-tidies-up", twin: true, pod: "paprika", runtime: primary, at: seconds(169), // an init container that is done
			says:     byHand + `|RemoveContainer`,
			everyone: byHand,
			acts: []act{
				{seconds(-45), p.adds(prepared)},
				{0, p.removesEnded("paprika")},
				{seconds(95), p.ends("paprika")},
			},
			asks: []ask{{seconds(14), either}, {seconds(64), either}},
		},
		{
			name: "person-changes-shares", twin: true, pod: "ginger", runtime: primary, at: seconds(172),
			says:     byHand + `|UpdateContainerResources|\bcpu\b|shares|PortForward`, // the next situation has the same pod
			everyone: byHand,
			acts: []act{{0, func() error {
				id, _, err := p.process("ginger")
				if err != nil {
					return err
				}
				return p.ctl("update", "--cpu-share", "512", id)
			}}},
			asks: []ask{{seconds(13), either}, {seconds(52), either}},
		},
		{
			name: "person-forwards-a-port", twin: true, pod: "ginger", runtime: primary, at: seconds(175), // for a minute
			says:     byHand + `|PortForward`,
			everyone: byHand,
			acts:     []act{{0, forward}, {seconds(62), forwardNoMore}},
			asks:     []ask{{seconds(40), either}, {seconds(80), either}},
		},
		{
			name: "backup-runs-in-a-container", twin: true, pod: "turmeric", runtime: primary, at: seconds(178), claims: "slow", // until somebody ends it
			says:     byHand + `|ExecSync|\bexec|cancel|gave up`,
			denies:   `probe|\bhook|hang|hung|frozen|shim`,
			everyone: byHand,
			acts:     []act{{0, backup}, {seconds(82), backupNoMore}},
			asks:     []ask{{seconds(42), either}, {seconds(74), either}, {seconds(96), either}},
		},
		{
			name: "manifest-moved-out-and-in", twin: true, pod: "tarragon", runtime: primary, at: seconds(181), // so people restart a static pod
			acts: []act{
				{seconds(-40), p.adds(pod("tarragon", "sleep"))},
				{0, p.ends("tarragon")}, {seconds(8), p.adds(pod("tarragon", "sleep"))}, {seconds(95), p.ends("tarragon")},
			},
			asks: []ask{{seconds(36), either}, {seconds(76), either}},
		},
		{
			name: "manifest-revised-again-and-again", twin: true, pod: "sorrel", runtime: primary, at: seconds(184), // and kubelet obeys
			says:   `again|times|replac|restart|recreat|anew|delet|kubelet (has|had|did|stop|end|remov|kill)\w*`,
			denies: `crash|fail|\bhang|\bhung|refused`,
			acts: []act{
				{0, revised("1")}, {seconds(14), revised("2")}, {seconds(28), revised("3")}, {seconds(42), revised("4")},
				{seconds(56), revised("5")}, {seconds(98), p.ends("sorrel")},
			},
			asks: []ask{{seconds(34), either}, {seconds(66), either}, {seconds(92), either}},
		},
		{
			name: "agent-of-another-age", twin: true, at: seconds(187), // it speaks a version of CRI that is gone
			says:     byHand + `|v1alpha2|unimplemented|unknown service|not (implement|serve|support)`,
			everyone: byHand + `|v1alpha2`,
			denies:   `(kubelet|pod|container) (is|was|does|did|cannot)`,
			acts: []act{{0, p.calls(6, time.Minute, func(ctx context.Context, to *grpc.ClientConn) {
				_ = to.Invoke(ctx, "/runtime.v1alpha2.RuntimeService/ListContainers", &runtimeapi.ListContainersRequest{}, &runtimeapi.ListContainersResponse{})
			})}},
			asks: []ask{{seconds(15), either}, {seconds(58), either}},
		},
		{
			name: "agent-has-no-patience", twin: true, at: seconds(190), claims: "slow", // it gives up after a millisecond
			says:     byHand + `|cancel|gave up|deadline|\b1 ?ms\b`,
			everyone: byHand,
			denies:   `hang|hung|frozen|\bkubelet (gave|cancel)`,
			acts: []act{{0, p.calls(12, time.Millisecond, func(ctx context.Context, to *grpc.ClientConn) {
				_, _ = runtimeapi.NewRuntimeServiceClient(to).ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{})
			})}},
			asks: []ask{{seconds(17), either}, {seconds(60), either}},
		},
		{
			name: "helper-ends-last", twin: true, pod: "saffron", runtime: primary, at: seconds(193), // as the program says goodbye first
			acts: []act{{seconds(-48), p.adds(escorted)}, {0, p.ends("saffron")}},
			asks: []ask{{seconds(15), either}, {seconds(62), either}},
		},
		{
			name: "deleted-while-it-is-pulled", twin: true, pod: "vanilla", runtime: primary, at: seconds(268), claims: "registry slow",
			says:   `cancel|delet|gave up|\bpull|under way|kubelet (has|had|did|no longer|stopp|end)`,
			denies: `refused|unauthori[sz]ed|certificate|no space|` + imageAbsent,
			acts: []act{
				{0, p.adds(withImage(pod("vanilla", "sleep"), "drowsy.test/testbed/user:1"))},
				{seconds(22), p.ends("vanilla")}, {seconds(32), func() error { awake.Store(true); return nil }},
			},
			asks: []ask{{seconds(16), either}, {seconds(45), either}, {seconds(60), either}},
		},

		// What is wrong with criproxy's configuration and with the second runtime's.
		{
			name: "runtime-that-nobody-installed", pod: "pepper", at: seconds(332), claims: "file runtime gone slow", // criproxy was told of it
			says:     `spare\.io|spare\.sock`,
			everyone: `spare\.io|spare\.sock|configur|reload`,
			denies:   `unauthori[sz]ed|pull secret|\bcni\b|` + imageAbsent + "|" + programMissing + "|" + outOfMemory,
			acts: []act{
				{0, func() error {
					return p.proxy.Configure(p.proxy.YAML + "- name: " + spare + "\n  address: " + filepath.Join(p.dir, "spare.sock") + "\n")
				}},
				{seconds(5), p.adds(elsewhere)},
				{seconds(64), p.ends("pepper")},
				{seconds(72), func() error { return p.proxy.Configure(p.proxy.YAML) }},
			},
			asks: []ask{{seconds(36), lasts}, {seconds(58), lasts}, {seconds(102), over}},
		},
		{
			name: "proxy-of-the-runtime-is-down", pod: "coriander", runtime: old, at: seconds(444), claims: "registry network runtime gone slow",
			says:     `proxy(connect)?\b|127\.0\.0\.1:1\b|refused|HTTPS?_PROXY|(can|could) ?not (be )?(reach|connect)|unreachable`,
			everyone: secondCameBack + `|proxyconnect|was (gone|slow|restarted|replaced)|not initiali[sz]ed`,
			denies:   `unauthori[sz]ed|pull secret|certificate|no such host|no space|` + imageAbsent + "|" + outOfMemory,
			acts: []act{
				{0, p.restartsBehindProxy},
				{seconds(6), p.adds(withImage(onSecond(pod("coriander", "sleep"), ""), old+"/cdn.test/testbed/app:1"))},
				{seconds(64), p.ends("coriander")},
			},
			asks: []ask{{seconds(38), lasts}, {seconds(58), lasts}, {seconds(88), over}},
		},
	}
}

// pushEncrypted puts an image into the registry whose last layer is encrypted, as those of ocicrypt are.
func (p *patient) pushEncrypted(image string) {
	secret := make([]byte, 4096)
	_, err := rand.Read(secret)
	require.NoError(p.t, err)
	made, err := mutate.AppendLayers(p.pushed("testbed/app:1"), static.NewLayer(secret, "application/vnd.oci.image.layer.v1.tar+gzip+encrypted"))
	require.NoError(p.t, err)
	require.NoError(p.t, p.registry.Push(image, made))
}

// pushWithFile puts an image into the registry that is testbed/app:1 with one more layer, which holds a file that cannot be
// compressed. It returns the layer and the path of the file, which no other image has: a name and some random digits.
func (p *patient) pushWithFile(image, name string) (layer v1.Layer, file string) {
	content := make([]byte, 64<<10)
	_, err := rand.Read(content)
	require.NoError(p.t, err)
	file = fmt.Sprintf("%s-%x", name, content[:6])
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	require.NoError(p.t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: file, Mode: 0o644, Size: int64(len(content))}))
	_, err = w.Write(content)
	require.NoError(p.t, errors.Join(err, w.Close()))
	layer, err = tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(archive.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
	require.NoError(p.t, err)
	made, err := mutate.AppendLayers(p.pushed("testbed/app:1"), layer)
	require.NoError(p.t, err)
	require.NoError(p.t, p.registry.Push(image, made))
	return layer, file
}

// cutsShort returns a registry that has all that another one has, but ends each transfer of a layer before its end.
func (p *patient) cutsShort(layer v1.Layer, well http.Handler) http.HandlerFunc {
	digest, err := layer.Digest()
	require.NoError(p.t, err)
	reader, err := layer.Compressed()
	require.NoError(p.t, err)
	defer reader.Close()
	content, err := io.ReadAll(reader)
	require.NoError(p.t, err)
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, digest.Hex) {
			well.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Content-Length", fmt.Sprint(len(content)))
		_, _ = w.Write(content[:1000])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler) // it closes the connection, and is not logged
	}
}

// mutualTLS starts a registry that wants a certificate of each client, and ends it with the test. The runtime has none.
func (p *patient) mutualTLS(c *runtimes.Containerd, name string) {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	p.serveTLS(server)
	p.pullsSafelyFrom(c, name, server.URL, "skip_verify = true")
}

// misnamed starts a registry whose certificate the runtime trusts, but it is for other addresses, and ends it with the test.
func (p *patient) misnamed(c *runtimes.Containerd, name string) {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	require.NoError(p.t, server.Listener.Close())
	listener, err := net.Listen("tcp", "127.0.0.2:0")
	require.NoError(p.t, err)
	server.Listener = listener
	p.serveTLS(server)
	file := filepath.Join(p.dir, name+".crt")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	require.NoError(p.t, os.WriteFile(file, text, 0o644))
	p.pullsSafelyFrom(c, name, server.URL, fmt.Sprintf("ca = %q", file))
}

func (p *patient) serveTLS(server *httptest.Server) {
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of the runtimes that hang up
	server.StartTLS()
	p.t.Cleanup(server.Close)
}

// pullsSafelyFrom makes a runtime pull the images of a registry from a server. A line of hosts.toml says how it knows the server.
func (p *patient) pullsSafelyFrom(c *runtimes.Containerd, name, server, line string) {
	dir := filepath.Join(c.Dir, "certs.d", name)
	require.NoError(p.t, os.MkdirAll(dir, 0o755))
	text := fmt.Sprintf("server = %q\n%s\n[host.%[1]q]\n  capabilities = [\"pull\", \"resolve\"]\n  %[2]s\n", server, line)
	require.NoError(p.t, os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(text), 0o644))
}

// deniesStrangers answers as Docker Hub does when a repository is private or does not exist: a token is given to anybody, and is
// good for nothing.
func deniesStrangers(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/token" {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"token":"anonymous","access_token":"anonymous","expires_in":300}`)
		return
	}
	challenge := fmt.Sprintf(`Bearer realm="http://%s/token",service="registry.docker.io",scope="repository:testbed/app:pull"`, r.Host)
	if r.Header.Get("Authorization") != "" {
		challenge += `,error="insufficient_scope"`
	}
	w.Header().Set("WWW-Authenticate", challenge)
	w.WriteHeader(http.StatusUnauthorized)
	fmt.Fprint(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`)
}

// failsAtFirst returns a registry that is not available for so long after its first request.
func failsAtFirst(d time.Duration, well http.Handler) http.HandlerFunc {
	var first atomic.Pointer[time.Time]
	return func(w http.ResponseWriter, r *http.Request) {
		now := time.Now()
		first.CompareAndSwap(nil, &now)
		if time.Since(*first.Load()) < d {
			http.Error(w, "no healthy upstream", http.StatusServiceUnavailable)
			return
		}
		well.ServeHTTP(w, r)
	}
}

// losesSnapshot returns the act that removes the folder of the primary's snapshot which holds a file of an image. Its metadata
// stays.
func (p *patient) losesSnapshot(file string) func() error {
	return func() error {
		snapshots := filepath.Join(p.runtime.Dir, "root", "io.containerd.snapshotter.v1.*", "snapshots", "*")
		var found []string
		for _, root := range []string{"", "fs"} { // of native and of overlayfs
			some, err := filepath.Glob(filepath.Join(snapshots, root, file))
			if err != nil {
				return err
			}
			for _, one := range some {
				found = append(found, strings.TrimSuffix(one, filepath.Join("/", root, file)))
			}
		}
		if len(found) == 0 {
			return fmt.Errorf("no snapshot holds %s", file)
		}
		for _, one := range found {
			if err := os.RemoveAll(one); err != nil {
				return err
			}
		}
		return nil
	}
}

// runcError returns a line of runc's log.
func (p *patient) runcError(problem string) string {
	line, err := json.Marshal(map[string]string{"level": "error", "msg": problem, "time": "2026-11-29T03:12:44Z"})
	require.NoError(p.t, err)
	require.NotContains(p.t, string(line), "'")
	return string(line)
}

// runcRefusesSandbox returns the act after which runc fails with an error, as it logs it, when it makes the sandbox of a pod. See
// onRunc.
func (p *patient) runcRefusesSandbox(file, pod, problem string) func() error {
	return writes(file, fmt.Sprintf(`case " $* " in *" create "*)
	words="$* "; bundle=${words#*--bundle }; bundle=${bundle%%%% *}; log=${words#*--log }; log=${log%%%% *}
	if grep -q %s-%s "$bundle/config.json" && grep -q 'container-type": *"sandbox"' "$bundle/config.json"; then
		printf '%%s\n' '%s' >>"$log"; exit 1
	fi ;;
esac
`, pod, p.kubelet.NodeName, p.runcError(problem)))
}

// execAlwaysFails returns the act after which runc fails with an error, as it logs it, when it runs a command in the container of a pod.
func (p *patient) execAlwaysFails(file, pod, problem string) func() error {
	return func() error {
		id, _, err := p.process(pod)
		if err != nil {
			return err
		}
		return writes(file, fmt.Sprintf(`case " $* " in *" exec "*%s*)
	words="$* "; log=${words#*--log }; log=${log%%%% *}
	printf '%%s\n' '%s' >>"$log"; exit 1 ;;
esac
`, id, p.runcError(problem)))()
	}
}

// removesEnded returns the act that removes the containers of a pod that have ended, with crictl.
func (p *patient) removesEnded(pod string) func() error {
	return func() error {
		out, err := p.ctlOutput("ps", "--all", "--quiet", "--state", "Exited", "--label", "io.kubernetes.pod.name="+pod+"-"+p.kubelet.NodeName)
		if err != nil {
			return err
		}
		ended := regexp.MustCompile(`\b[0-9a-f]{64}\b`).FindAllString(out, -1)
		if len(ended) == 0 {
			return fmt.Errorf("no container of %s has ended: %q", pod, out)
		}
		return p.ctl(append([]string{"rm"}, ended...)...)
	}
}

// holds returns the acts between which crictl runs with arguments that are known when it starts. It must not end by itself.
func (p *patient) holds(args func() ([]string, error)) (begin, end func() error) {
	ctx, stop := context.WithTimeout(p.t.Context(), time.Hour) // without a bound, host.Command has a minute
	done := make(chan error, 1)
	begin = func() error {
		words, err := args()
		if err != nil {
			return err
		}
		cmd := host.Command(ctx, p.crictl, append([]string{"-t", "200s", "-r", p.proxy.Endpoint(), "-i", p.proxy.Endpoint()}, words...)...)
		var output bytes.Buffer
		cmd.Stdout, cmd.Stderr = &output, &output
		if err := cmd.Start(); err != nil {
			return err
		}
		go func() {
			if err := cmd.Wait(); ctx.Err() == nil {
				done <- fmt.Errorf("crictl %s has ended: %v: %s", strings.Join(words, " "), err, &output)
				return
			}
			done <- nil
		}()
		return nil
	}
	end = func() error {
		stop()
		select {
		case err := <-done:
			return err
		case <-time.After(10 * time.Second):
			return errors.New("crictl did not run, or does not end")
		}
	}
	return begin, end
}

// calls returns the act that calls criproxy as another client does, so many times, a second apart. Each call may take so long, and
// may fail.
func (p *patient) calls(times int, atMost time.Duration, call func(context.Context, *grpc.ClientConn)) func() error {
	return func() error {
		to, err := grpc.NewClient(p.proxy.Endpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err
		}
		go func() { // the other situations go on
			defer to.Close()
			first, stop := context.WithTimeout(p.t.Context(), 20*time.Second)
			defer stop()
			_, _ = runtimeapi.NewRuntimeServiceClient(to).Version(first, &runtimeapi.VersionRequest{}) // so that it is connected
			for range times {
				ctx, stop := context.WithTimeout(p.t.Context(), min(atMost, 20*time.Second))
				call(ctx, to)
				stop()
				time.Sleep(time.Second)
			}
		}()
		return nil
	}
}

// restartsBehindProxy starts the second runtime again with the environment of a machine whose proxy for HTTP does not run. Go never
// asks a proxy for addresses of this machine.
func (p *patient) restartsBehindProxy() error {
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
	words := func(list []byte) []string { return strings.Split(strings.TrimSuffix(string(list), "\x00"), "\x00") }
	behind := append(words(env), "HTTP_PROXY=http://127.0.0.1:1", "HTTPS_PROXY=http://127.0.0.1:1")
	if err := p.second.Terminate(p.t.Context()); err != nil {
		return err
	}
	return errors.Join(p.second.Process.Start(words(argv), behind), p.second.WaitReady(p.t.Context()))
}
