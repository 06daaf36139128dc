package why

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
)

// Each cause is shown by an answer as runtimes, CNI plugins and registries give it.
func TestEachCauseIsReadFromAnAnswer(t *testing.T) {
	const (
		runc  = "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: error during container init: "
		cni   = `failed to setup network for sandbox "7f": plugin type="bridge" failed (add): `
		pull  = `failed to pull and unpack image "r.test/app:1": failed to resolve image: `
		fetch = pull + `failed to do request: Head "https://r.test/v2/app/manifests/1": `
		crio  = `unable to pull image or OCI artifact: pull image err: initializing source docker://r.test/app:1: pinging container registry r.test: Get "https://r.test/v2/": `
	)
	seen := map[string]bool{}
	for _, one := range []struct{ method, answer, text string }{
		{"RunPodSandbox", runc + `expected cgroupsPath to be of format "slice:prefix:name"`, "the cgroup drivers differ"},
		{"RunPodSandbox", `unable to get OCI runtime for sandbox "7f": no runtime for "kata" is configured`, noHandler},
		{"Version", "unknown service runtime.v1.RuntimeService", "does not serve this version"},
		{"CreateContainer", "criproxy: CreateContainer: refused at PreCreateContainer: plugin policy.json did not answer within 2s", "does not answer in time"},
		{"RunPodSandbox", "criproxy: RunPodSandbox: refused at PreRunPodSandbox: plugin policy.json says no", "a plugin of criproxy refuses it"},
		{"RunPodSandbox", `failed to setup network for sandbox "7f": cni plugin not initialized`, "no CNI configuration"},
		{"CreateContainer", `failed to create containerd container: mkdir /var/lib/containerd/x: no space left on device`, "no space left where the answer says"},
		{"RunPodSandbox", runc + `mkdir /sys/fs/cgroup/memory/kubepods/pod7f: no space left on device`, "as many cgroups as there may be"},
		{"RunPodSandbox", cni + "write /var/lib/cni/networks/net/10.1.0.7: no space left on device", "no space left where the answer says"},
		{"StartContainer", runc + "open /dev/pts/ptmx: no space left on device", "as many terminals as there may be"}, // was a full disk
		{"StartContainer", runc + "open /dev/ptmx: no space left on device", "as many terminals as there may be"},
		{"StartContainer", runc + "reopen ptmx to get new pty pair: reopen fd 7: no space left on device", "as many terminals as there may be"}, // runc since 1.3.3
		{"CreateContainer", "crun: open `/dev/ptmx`: No space left on device", "as many terminals as there may be"},
		{"StartContainer", runc + "error setting up ptmx: symlink pts/ptmx /dev/ptmx: no space left on device", "no space left where the answer says"},
		{"RunPodSandbox", `failed to get sandbox image "registry.k8s.io/pause:3.10": ` + fetch + "dial tcp: i/o timeout", "the image of sandboxes"},
		{"RunPodSandbox", cni + "failed to allocate for range 0: no IP addresses available in range set: 10.1.0.1-10.1.0.254", "no free address"},
		{"RunPodSandbox", `failed to setup network for sandbox "7f": failed to find plugin "calico" in path [/opt/cni/bin]`, "program of a CNI plugin is missing"},
		{"RunPodSandbox", cni + `error getting ClusterInformation: connection is unauthorized`, "fails to make the network"},
		{"RunPodSandbox", `failed to setup network for sandbox "7f": get cni namespace options: reading pod bandwidth annotations: quantities must match the regular expression`, "its network cannot be made"}, // no plugin was called
		{"StartContainer", runc + "unable to join session keyring: unable to create session key: disk quota exceeded", "as many keys of the kernel"},                                                            // no disk is full
		{"StartContainer", runc + "container init was OOM-killed (memory limit too low?)", "memory limit is too low"},
		{"StartContainer", runc + `exec: "nothing": executable file not found in $PATH`, "is not found in the container"},
		{"StartContainer", runc + `exec: "/nothing": stat /nothing: no such file or directory`, "is not found in the container"},
		{"StartContainer", runc + `exec: "/app": permission denied`, "may not be executed"},
		{"StartContainer", runc + "exec /app: exec format error", "cannot run a program of this form"},
		{"StartContainer", "failed to create containerd task: failed to create shim task: ttrpc: closed", "its shim ended meanwhile"},
		{"StartContainer", `failed to create containerd task: failed to create shim task: OCI runtime create failed: unable to retrieve OCI runtime error (open /run/x/log.json: no such file or directory): exec: "runc": executable file not found in $PATH`, "a program of the runtime"},
		{"ExecSync", `failed to exec in container: OCI runtime exec failed: unable to retrieve OCI runtime error (open /run/x: no such file or directory): exec: "runc": executable file not found in $PATH`, "a program of the runtime"},
		{"RunPodSandbox", `failed to start sandbox "7f": failed to create containerd task: failed to start shim: failed to resolve runtime path: runtime "io.containerd.kata.v2" binary not installed "containerd-shim-kata-v2": file does not exist`, "a program of the runtime"},
		{"PullImage", pull + "open /x: too many open files", "as many open files"},
		{"CreateContainer", "failed to mount: fork/exec /usr/bin/mount: resource temporarily unavailable", "as many processes and threads as there may be"},
		{"StartContainer", runc + "can't get final child's PID from pipe: EOF; runc init error(s): nsexec-0[21291]: unable to spawn stage-1: Resource temporarily unavailable", "as many processes and threads as there may be"},
		{"RunPodSandbox", `failed to create sandbox "7f": mkdir /var/lib/containerd/x: read-only file system`, "a file system is read-only"},
		{"CreateContainer", `failed to generate spec: CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=0`, "no such CDI device"},
		{"StartContainer", runc + "unable to apply apparmor profile: apparmor failed to apply profile: write /proc/thread-self/attr/apparmor/exec: no such file or directory", "its AppArmor profile"},
		{"PullImage", fetch + "proxyconnect tcp: dial tcp: lookup proxy.test: no such host", "the runtime's proxy cannot be reached"},
		{"CreateContainer", `failed to get image from containerd "sha256:7f": image "sha256:7f": not found`, "the image is no longer there"},
		{"CreateContainer", `criproxy: CreateContainer: image "old.io/r.test/app:1" and sandbox "7f" belong to different backends, and one call can only go to one`, "of different runtimes"},
		{"CreateContainer", `failed to find sandbox id "7f": not found`, "the sandbox is no longer there"},
		{"CreateContainer", `failed to generate container "7f" spec: failed to generate spec: failed to stat "/data": stat /data: no such file or directory`, "a file or folder"},
		{"PullImage", `failed to copy: write /x/ingest/7f/data: no space left on device`, diskFull},
		{"PullImage", `failed to pull and unpack image "r.test/app:1": no match for platform in manifest: not found`, "not made for this machine"},
		{"PullImage", fetch + "http: server gave HTTP response to HTTPS client", "the registry speaks HTTP"},
		{"PullImage", crio + "http: server gave HTTP response to HTTPS client", "the registry speaks HTTP"},
		{"PullImage", fetch + "tls: first record does not look like a TLS handshake", "speaks neither TLS nor HTTP"}, // of HTTP, Go says so
		{"PullImage", crio + "tls: first record does not look like a TLS handshake", "speaks neither TLS nor HTTP"},
		{"PullImage", fetch + "proxyconnect tcp: tls: first record does not look like a TLS handshake", "the runtime's proxy"}, // of HTTP as well
		{"PullImage", fetch + "tls: failed to verify certificate: x509: certificate has expired or is not yet valid: current time is before", "is not valid now"},
		{"PullImage", fetch + "tls: failed to verify certificate: x509: certificate signed by unknown authority", "is not accepted"},
		{"ListPodSandbox", "criproxy: /runtime.v1.RuntimeService/ListPodSandbox: the socket /run/criproxy.sock has as many calls under way as its limit allows (1); make fewer at once, or raise maxCalls in listeners", "maxCalls allows"},
		{"RunPodSandbox", "criproxy: the access list of /run/criproxy.sock does not allow /runtime.v1.RuntimeService/RunPodSandbox to uid 0 (process 7)", "does not allow it"},
		{"PullImage", fetch + "dial tcp: lookup r.test on 10.0.0.53:53: no such host", "cannot be resolved"},
		{"PullImage", pull + "unexpected status from HEAD request to https://r.test/v2/app/manifests/1: 429 Too Many Requests", "limits how often it is asked"},
		{"PullImage", pull + "unexpected status from HEAD request to https://r.test/v2/app/manifests/1: 401 Unauthorized", "refuses the credentials"},
		{"PullImage", pull + "unexpected status from HEAD request to https://r.test/v2/app/manifests/1: 403 Forbidden", "forbids the pull"},
		{"PullImage", pull + "unexpected status from HEAD request to https://r.test/v2/app/manifests/1: 503 Service Unavailable", "the registry, or a proxy before it, fails"},
		{"PullImage", pull + "r.test/app:1: not found", "no such image or tag"},
		{"PullImage", `failed to pull and unpack image "r.test/app:1": failed to unpack image on snapshotter overlayfs: unexpected media type text/html for sha256:7f: not found`, "a web page"}, // was "no such image or tag"
		{"PullImage", `failed to pull and unpack image "r.test/app:1": failed to extract layer sha256:7f: archive/tar: invalid tar header: unknown`, "cannot be unpacked"},
		{"PullImage", fetch + "tls: failed to verify certificate: x509: certificate is valid for a.test, not r.test", "for another name"},
		{"StopPodSandbox", `failed to destroy network for sandbox "7f": cni plugin not initialized`, "no CNI configuration"},
		{"PullImage", `failed to pull and unpack image "r.test/app:1": failed commit on ref "config-sha256:7f": unexpected commit digest sha256:80, expected sha256:7f: failed precondition`, "not what the manifest says"},
		{"PullImage", fetch + "read tcp 10.0.0.1:45664->10.0.0.2:443: read: connection reset by peer", "breaks off"},
		{"PullImage", fetch + "net/http: timeout awaiting response headers", "accepts connections and does not answer"},
		{"PullImage", fetch + "dial tcp 10.0.0.2:443: connect: connection refused", "cannot be reached"},
		{"StopPodSandbox", `failed to destroy network for sandbox "7f": plugin type="bridge" failed (delete): no answer`, "fails to remove the network"},
		{"StopContainer", "failed to kill container: ttrpc: closed", "its shim is gone"},
		{"StopContainer", `failed to get task for container "7f": context deadline exceeded`, noAnswer},
		{"StopContainer", "context deadline exceeded", noAnswer},
		{"StopPodSandbox", "context deadline exceeded", "its CNI plugin or its shim did not answer"},
		{"ExecSync", "failed to exec in container: failed to load task: context deadline exceeded", noAnswer},
		{"ExecSync", `OCI runtime exec failed: exec failed: unable to start container process: chdir to cwd ("/data/current") set in config.json failed: no such file or directory`, "the working directory"}, // was "its program is not in the container"
		{"ExecSync", `failed to exec in container: failed to create exec "7f": cannot exec in a paused state`, "the container is paused"},
		{"ExecSync", `failed to exec in container: failed to start exec "7f": OCI runtime exec failed: exec failed: unable to start container process: exec: "/bin/check": stat /bin/check: no such file or directory`, "its program is not in the container"},
		{"ExecSync", `failed to exec in container: failed to start exec "7f": OCI runtime exec failed: exec failed: unable to start container process: exec: "/check": permission denied`, "may not be executed"},
		{"ExecSync", `failed to exec in container: failed to start exec "7f": OCI runtime exec failed: exec failed: container does not exist`, "runc does not know the container"},
		{"RemoveImage", "delete image: image used by 7f: image is in use by a container", "podman"},
	} {
		c := causeOf(one.method, one.answer)
		require.NotNil(t, c, one.answer)
		assert.Contains(t, c.text, one.text, one.answer)
		assert.NotEmpty(t, c.cure, c.text)
		seen[strings.Join(c.of, " ")+c.text] = true
	}
	for _, c := range causes {
		assert.True(t, seen[strings.Join(c.of, " ")+c.text], "no answer shows that %s", c.text)
	}
	for method, answer := range map[string]string{
		"StartContainer":  runc + "error setting rlimit type 7: operation not permitted",
		"PullImage":       `failed to pull and unpack image "r.test/app:1": content digest sha256:7f: not found`, // on the node, not in the registry
		"RunPodSandbox":   "rpc error: something new",
		"ExecSync":        `failed to exec in container: failed to create exec "7f": ttrpc: closed`, // it has ended
		"CreateContainer": "nri: the server did not answer within 2s",                               // was blamed on a plugin of criproxy
	} {
		assert.Nil(t, causeOf(method, answer), answer)
	}
}

// The cure of each failed pull blamed the registry, and why said nothing of what keeps a container from starting (issue 42).
func TestACauseHasItsOwnCureAndWhatHasNoneIsQuoted(t *testing.T) {
	fails := func(method, answer string) *view {
		v := &view{addresses: map[string]string{"primary": "/run/a.sock"}}
		for second := range 3 {
			v.calls = append(v.calls, made(method, "primary", second, 0, codes.Unknown, answer))
		}
		return v
	}
	first := func(r *Rule, method, answer string) Finding {
		found := r.find(fails(method, answer))
		require.Len(t, found, 1)
		return r.complete(found[0])
	}
	full := first(&repeated, "CreateContainer", "mkdir /x: no space left on device")
	assert.Equal(t, "shop/web does not start on primary: CreateContainer failed 3 times: there is no space left where the answer says: mkdir /x: no space left on device", full.Text)
	assert.Contains(t, full.Cure, "df -h /; df -i / show")
	full = first(&pulls, "PullImage", "failed to copy: write /var/lib/x/ingest/7f/data: no space left on device")
	assert.Equal(t, "primary", full.About, "the registry is well")
	assert.Contains(t, full.Text, "a disk of primary is full (/var/lib/x/ingest): failed to copy")
	assert.Contains(t, full.Cure, "df -h /var/lib/x/ingest; df -i /var/lib/x/ingest show")
	assert.Contains(t, full.Cure, "crictl -r unix:///run/a.sock rmi --prune")
	full = first(&pulls, "PullImage", "writing blob: adding layer with blob: processing tar file(write /usr/lib/a: no space left on device): exit status 1")
	assert.Contains(t, full.Text, "a disk of primary is full: writing blob")
	assert.Contains(t, full.Cure, "df -h; df -i show", "the path is one in the image")
	assert.Equal(t, "shop/web does not start on primary: CreateContainer failed 3 times: something new", first(&repeated, "CreateContainer", "something new").Text)

	refused := first(&pulls, "PullImage", "dial tcp: connect: connection refused")
	assert.Contains(t, refused.Cure, "curl -v https://r.test/v2/")
	unknown := first(&pulls, "PullImage", "something new")
	assert.Equal(t, "primary failed 3 times to pull r.test/app:1 for shop/web: the last answer was: something new", unknown.Text)
	assert.Equal(t, "team/app:1 from docker.io", withRegistry("team/app:1"))
	assert.Contains(t, unknown.Cure, "read the runtime's answer")
}

// df -h named a folder that could not be made (a stranger).
func TestTheFolderOfAFullDiskIsThere(t *testing.T) {
	id := strings.Repeat("0a", 32)
	for answer, want := range map[string]string{
		"write /v/io.containerd.content.v1.content/ingest/" + id + "/data: no space left on device":                 "/v/io.containerd.content.v1.content/ingest",
		"mkdir /v/io.containerd.snapshotter.v1.overlayfs/snapshots/new-123: no space left on device":                "/v/io.containerd.snapshotter.v1.overlayfs/snapshots",
		"mkdir /v/io.containerd.snapshotter.v1.overlayfs/snapshots/new-123/fs: no space left on device":             "/v/io.containerd.snapshotter.v1.overlayfs/snapshots",
		"open /v/tmpmounts/containerd-mount7/usr/lib/a: disk quota exceeded":                                        "/v/tmpmounts",
		"write /run/containerd/io.containerd.grpc.v1.cri/sandboxes/" + id + "/resolv.conf: no space left on device": "/run/containerd/io.containerd.grpc.v1.cri/sandboxes",
		"mkdir /var/lib/containers/storage/overlay/" + id + "/merged: no space left on device":                      "/var/lib/containers/storage/overlay",
		"write /var/lib/cni/networks/net/10.1.0.7: no space left on device":                                         "/var/lib/cni/networks/net",
		"no space left on device": "",
	} {
		assert.Equal(t, want, folderOf(answer), answer)
	}
}
