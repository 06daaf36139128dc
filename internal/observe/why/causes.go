package why

import (
	"path"
	"regexp"
	"slices"
	"strings"
)

// A cause is what an answer of a runtime, or of criproxy, shows of a call that failed.
type cause struct {
	of    []string // methods
	words []string // one of them is in the answer; * stands for anything
	text  string
	cure  string

	likely bool // the answer does not say it, and makes it likely
	misfit bool // it lasts until a configuration changes, so one failure is enough to report it
	path   bool // the answer must name a path before its words
}

// causeOf returns the first cause that an answer to a method shows, or nil. An answer without one is quoted.
func causeOf(method, answer string) *cause {
	i := slices.IndexFunc(causes, func(c cause) bool {
		return slices.Contains(c.of, method) && (!c.path || inPath.MatchString(answer)) && slices.ContainsFunc(c.words, func(w string) bool { return contains(answer, w) })
	})
	if i < 0 {
		return nil
	}
	return &causes[i]
}

// Methods that fail for the same causes.
var (
	starting = []string{"RunPodSandbox", "CreateContainer", "StartContainer"}
	stopping = []string{"StopContainer", "StopPodSandbox"}
	pulling  = []string{"PullImage"}
	asking   = append([]string{"PullImage", "Version", "ListPodSandbox", "ListContainers", "Status", "GetContainerEvents"}, starting...)
)

// Words that more than one place needs.
const (
	noHandler = "the runtime has no such RuntimeClass handler"

	noAnswer = "its shim did not answer"
	wakeShim = "find the process containerd-shim (or conmon) with the sandbox's id in its arguments: it is stopped, or it waits for a disk or a process in state D. Continue it (kill -CONT), or end it (kill -KILL): that ends all containers of the pod, and the runtime then cleans up"

	diskFull = "a disk of the runtime is full"
	findRoom = "df -h DIR; df -i DIR show what is full, bytes or inodes: free some. If images are on this disk, crictl rmi --prune removes those that nobody uses"

	tryRegistry = "try the registry from this node: curl -v https://REGISTRY/v2/. Look at proxies, DNS, and the runtime's hosts.toml or registries.conf for this registry"
)

// A program of a container that does not start, in the words of runc and crun. Anything else may be missing, too, or forbidden.
var (
	noProgram = []string{"container process: exec: *executable file not found", "container init: exec: *executable file not found", "container process: exec: *no such file", "container init: exec: *no such file",
		"crun: executable file*not found"}
	notExecutable = []string{"container process: exec: *ermission denied", "container init: exec: *ermission denied", "crun: open executable: Permission denied"}
)

// causes are all that are known, with the words of containerd, CRI-O, runc, crun, CNI plugins and registries. Where several
// words are in an answer, the cause is the earlier one here.
var causes = []cause{
	// Configurations that do not go together.
	{of: asking, misfit: true, words: []string{"expected cgroupsPath to be of format"}, text: "the cgroup drivers differ: the runtime uses systemd, kubelet cgroupfs",
		cure: "give the runtime the driver that kubelet has: SystemdCgroup in containerd's runc options, cgroup_manager in CRI-O, cgroupDriver of kubelet. criproxy doctor compares them"},
	{of: asking, misfit: true, words: []string{"no runtime for *is configured", "failed to find runtime handler"}, text: noHandler,
		cure: "add the handler to the runtime's configuration and restart the runtime, or correct the RuntimeClass. If another runtime of the node has the handler, map it there with backends[].handlers; criproxy check shows where each goes"},
	{of: asking, misfit: true, words: []string{"unknown service runtime."}, text: "the runtime does not serve this version of CRI",
		cure: "see whether the runtime serves CRI at all: packages of containerd turn it off, with cri in disabled_plugins of /etc/containerd/config.toml. If it does, use a runtime and a kubelet that share a version of CRI; criproxy status shows the version of each runtime"},
	{of: asking, words: []string{"has as many calls under way"}, text: "as many calls are under way as maxCalls allows",
		cure: "see who makes them (criproxy tail, criproxy ui): a stream that somebody left open counts, too. End them, or raise maxCalls where the answer says"},
	{of: asking, misfit: true, words: []string{"criproxy: the access list of "}, text: "the access list of criproxy's socket does not allow it",
		cure: "see access of this socket in listeners of criproxy's configuration: kubelet's socket needs none, or rules that name kubelet's user and all methods"},
	{of: asking, misfit: true, words: []string{": refused at *: plugin * did not answer within "}, text: "a plugin of criproxy does not answer in time, and its policy is Fail",
		cure: "criproxy hooks shows the plugins and how long each takes; mend the slow one, or set its policy to Ignore"},
	{of: asking, misfit: true, words: []string{": refused at "}, text: "a plugin of criproxy refuses it",
		cure: "read the plugin's reason; criproxy hooks shows the plugins, and what each has refused"},
	{of: asking, misfit: true, words: []string{"cni plugin not initialized", "cni config uninitialized"}, text: "the runtime has no CNI configuration that it can use",
		cure: "install or mend the network plugin: the runtime wants a file in /etc/cni/net.d"},

	// RunPodSandbox, CreateContainer and StartContainer.
	{of: starting, words: []string{"/sys/fs/cgroup*no space left on device"}, text: "there are as many cgroups as there may be",
		cure: "see how many there are (cat /proc/cgroups), and who makes them. cgroup.max.descendants limits them, and with cgroup v1 the kernel has at most 65,535 of memory, also of containers that ended long ago: drain the node and restart it to get rid of these"},
	{of: starting, words: []string{"session key*quota exceeded"}, text: "there are as many keys of the kernel as there may be",
		cure: "see /proc/key-users; raise kernel.keys.maxkeys and maxbytes, or root_maxkeys and root_maxbytes for root: each container takes one"},
	{of: starting, words: []string{"open*ptmx*o space left on device"}, text: "there are as many terminals as there may be",
		cure: "sysctl kernel.pty.max kernel.pty.nr shows how many the node may have and has; kernel.pty.reserve of them are not for containers. ls /dev/pts shows those of the node itself, ls /proc/PID/root/dev/pts those of a container. End interactive execs that nobody uses (kubectl exec -it), and pods with tty: true that need none, or raise kernel.pty.max. If the node has fewer, max= of the container's devpts mount limits them"},
	{of: starting, path: true, words: []string{"no space left on device", "disk quota exceeded"}, text: "there is no space left where the answer says",
		cure: findRoom},
	{of: starting, words: []string{"failed to get sandbox image"}, text: "the image of sandboxes (pause) is not there, and its pull fails",
		cure: "let the node reach the image that the answer names, pull it by hand (crictl pull), or name another one in the runtime's configuration: sandbox or sandbox_image in containerd"},
	{of: starting, words: []string{"no IP addresses available", "Assigned 0 out of 1 requested", "failed to assign an IP address to container"}, text: "there is no free address for the pod",
		cure: "see how many pods the node has, and whether addresses of pods that ended are still taken: the plugin host-local has a file for each in /var/lib/cni/networks. Otherwise give the node a larger range"},
	{of: starting, words: []string{"failed to find plugin"}, text: "the program of a CNI plugin is missing",
		cure: "install it in the folder that the answer names. Many network plugins do that with a pod of their own on each node: see whether it runs"},
	{of: starting, words: []string{"plugin type=*failed (add)"}, text: "its CNI plugin fails to make the network",
		cure: "mend the CNI plugin named in the answer, or what it waits for; the pod starts by itself at the next try"},
	{of: starting, words: []string{"failed to setup network for sandbox", "failed to create pod network sandbox"}, text: "its network cannot be made",
		cure: "mend what the end of the answer names: the configuration of the network, or an annotation of the pod; the pod starts by itself at the next try"},
	{of: append([]string{"ExecSync", "StopContainer"}, starting...), words: []string{"unable to retrieve OCI runtime error", "failed to resolve runtime path", "binary not installed", "exec: \"containerd-shim*not found"}, text: "a program of the runtime, its shim or runc, is missing or does not run",
		cure: "run the program that the answer names (runc --version), and install it where the runtime looks for it: BinaryName and runtime_path in its configuration"},
	{of: append([]string{"PullImage"}, starting...), words: []string{"too many open files"}, text: "there are as many open files, or inotify instances, as there may be",
		cure: "raise LimitNOFILE of the unit of the runtime, or fs.inotify.max_user_instances if the answer speaks of inotify or fsnotify, and restart the runtime"},
	{of: append([]string{"ExecSync"}, starting...), words: []string{"fork*esource temporarily unavailable", "spawn*esource temporarily unavailable", "newosproc", "can't fork", "pthread_create failed"}, text: "there are as many processes and threads as there may be",
		cure: "ps -eLf shows who has them. One of these limits them: TasksMax of the runtime's unit, podPidsLimit of kubelet, kernel.pid_max, kernel.threads-max. End what is not needed, or raise the limit"},
	{of: append([]string{"PullImage"}, starting...), words: []string{"read-only file system"}, text: "a file system is read-only where the answer says",
		cure: "if it is a disk of the node, look for its errors in dmesg: they make it read-only; findmnt shows it. If it is the container's, mount a volume there"},
	{of: starting, words: []string{"unresolvable CDI devices"}, text: "the node has no such CDI device",
		cure: "see whether the vendor's file is in /etc/cdi or /var/run/cdi (for NVIDIA: nvidia-ctk cdi generate), and whether the runtime has CDI on"},
	{of: starting, words: []string{"pparmor*no such file", "pparmor*not found"}, text: "its AppArmor profile is not on the node", cure: "load the profile onto each node (apparmor_parser), or correct its name in the pod"},
	{of: starting, words: []string{"container init was OOM-killed"}, text: "its memory limit is too low for it to start", cure: "raise resources.limits.memory of the container"},
	{of: append([]string{"ExecSync"}, starting...), words: []string{"chdir to cwd*no such file", "chdir to cwd*ermission denied"}, text: "the working directory of the container is not there, or may not be entered",
		cure: "make the folder in the image or on the volume, or correct workingDir; a folder that was removed and made anew is another one: restart the pod"},
	{of: starting[1:], words: noProgram, text: "the program is not found in the container",
		cure: "correct the command of the container, its PATH, or the image; a volume may lie over the program's folder. A script whose first line names a program that is missing looks the same"},
	{of: starting[1:], words: notExecutable, text: "the program may not be executed",
		cure: "make it executable in the image (chmod +x). A folder, and a file on a volume mounted with noexec, look the same"},
	{of: starting, words: []string{"exec format error"}, text: "the kernel cannot run a program of this form", cure: "use an image for the node's architecture; a script needs a first line that begins with #!"},
	{of: starting, words: []string{"ttrpc: closed", "shim disconnected"}, text: "its shim ended meanwhile",
		cure: "look for the OOM killer in dmesg, and for the end of the shim in the runtime's log; kubelet tries again by itself"},
	{of: []string{"CreateContainer"}, words: []string{"failed to resolve image*not found", "failed to get image from containerd*not found", "image not known"}, text: "the image is no longer there",
		cure: "kubelet pulls it at the next try, unless imagePullPolicy is Never. See who removes images: crictl rmi, a cleaner, or kubelet itself over imageGCHighThresholdPercent"},
	{of: []string{"CreateContainer"}, words: []string{"belong to different backends"}, text: "its image and its sandbox are of different runtimes",
		cure: "give both to one runtime: the annotation or the RuntimeClass of the pod, and the name of its image. criproxy where POD shows where the pod is, and criproxy check where each goes"},
	{of: starting, words: []string{"failed to find sandbox id"}, text: "the sandbox is no longer there", cure: "kubelet makes a new one by itself; see whether somebody removes sandboxes (crictl rmp)"},
	{of: starting, words: []string{"no such file or directory"}, text: "a file or folder that the answer names is not there",
		cure: "make it on the node if it is a hostPath of the pod, a device, or a part of the runtime; otherwise correct the pod or the image"},

	// PullImage.
	{of: pulling, words: []string{"no space left on device", "disk quota exceeded"}, text: diskFull, cure: findRoom},
	{of: pulling, words: []string{"no match for platform"}, text: "the image is not made for this machine", cure: "use an image that has the node's architecture, or choose other nodes with a nodeSelector for kubernetes.io/arch"},
	{of: pulling, words: []string{"server gave HTTP response to HTTPS client"}, text: "the registry speaks HTTP, and the runtime wants HTTPS",
		cure: "configure this registry with http:// in the runtime's hosts.toml, or with insecure = true in registries.conf; if it should speak HTTPS, correct the port"},
	{of: pulling, words: []string{"proxyconnect tcp: dial tcp"}, text: "the runtime's proxy cannot be reached",
		cure: "correct HTTPS_PROXY and NO_PROXY in the runtime's environment (systemctl cat containerd, or crio), or let the node reach the proxy. Restart the runtime"},
	{of: pulling, words: []string{"proxyconnect tcp: tls: first record does not look like a TLS handshake"}, text: "the runtime's proxy does not speak TLS",
		cure: "write HTTPS_PROXY with http:// in the runtime's environment (systemctl cat containerd, or crio), unless the proxy itself should speak TLS: its port is wrong then. Restart the runtime"},
	{of: pulling, words: []string{"first record does not look like a TLS handshake"}, text: "what answers at the registry's address speaks neither TLS nor HTTP",
		cure: "see what that is: the port is wrong, or a proxy or a firewall stands between. curl -v https://REGISTRY/v2/ from this node shows what answers"},
	{of: pulling, words: []string{"certificate has expired or is not yet valid"}, text: "the certificate of the registry is not valid now", cure: "see whether the node's clock is right (timedatectl); otherwise renew the certificate"},
	{of: pulling, words: []string{"x509: certificate is valid for", "x509: cannot validate certificate for"}, text: "the certificate of the registry is for another name",
		cure: "use the name that the certificate has, or give the registry one with this name; a proxy that answers in its place looks the same"},
	{of: pulling, words: []string{"x509:"}, text: "the certificate of the registry is not accepted",
		cure: "give the runtime the registry's CA (hosts.toml or the node's trust store), and restart the runtime if it reads that only at its start"},
	{of: pulling, words: []string{"no such host", "server misbehaving", "Temporary failure in name resolution"}, text: "the name of the registry, or of a server that belongs to it, cannot be resolved",
		cure: "check the name, and the node's DNS (/etc/resolv.conf): pulls use the node's, not the cluster's. If a mirror should answer for this name, look for hosts.toml in containerd's log: it leaves out a file that it cannot read"},
	{of: pulling, words: []string{"toomanyrequests", "429 Too Many Requests"}, text: "the registry limits how often it is asked", cure: "pull with credentials, or through a mirror"},
	{of: pulling, words: []string{"401 Unauthorized", "authorization failed", "no basic auth credentials", "pull access denied", "insufficient_scope", "requested access to the resource is denied"},
		text: "the registry refuses the credentials, or there are none",
		cure: "check the pull secrets of the pod and its service account, or kubelet's credential provider; a private image that does not exist looks the same"},
	{of: pulling, words: []string{"403 Forbidden"}, text: "the registry, or a proxy before it, forbids the pull",
		cure: "give the account of the pull secret the right to read this image; look at the registry's rules for addresses, and at the proxy in the runtime's environment"},
	{of: pulling, words: []string{"500 Internal Server Error", "502 Bad Gateway", "503 Service Unavailable", "504 Gateway Time"}, text: "the registry, or a proxy before it, fails",
		cure: "look at the registry, or at the proxy or mirror that the runtime is configured with; kubelet tries again by itself"},
	{of: pulling, words: []string{"failed to resolve*: not found", "manifest unknown", "name unknown"}, text: "the registry has no such image or tag", cure: "correct the name or the tag, or push the image"},
	{of: pulling, words: []string{"media type text/html"}, text: "what answers is a web page, and no image",
		cure: "see what answers: curl -v https://REGISTRY/v2/ from this node. It may be a proxy, the login page of a network, or a wrong address; if a mirror or a cache has kept the page, let it forget it"},
	{of: pulling, words: []string{"unexpected commit digest", "failed size validation", "Digest did not match"}, text: "what came is not what the manifest says",
		cure: "it was altered or cut on its way (a proxy, a cache, a bad disk or memory), or pushed so: pull it on another node, and push it anew if it fails there, too"},
	{of: pulling, words: []string{"failed to extract layer", "applying layer", "processing tar file"}, text: "a layer of the image cannot be unpacked",
		cure: "read what the answer says of it. Pull the image on another node: if it fails there, too, push it anew; otherwise look at the disk, the memory and the kernel of this one"},
	{of: pulling, words: []string{"connection reset by peer", "broken pipe", "EOF"}, text: "the connection to the registry breaks off",
		cure: "see what is between the node and the registry: a proxy, a firewall, a smaller MTU. curl -v https://REGISTRY/v2/ shows whether it is so for every request"},
	{of: pulling, words: []string{"timeout awaiting response headers"}, text: "the registry accepts connections and does not answer", cure: tryRegistry},
	{of: pulling, words: []string{"i/o timeout", "connection refused", "no route to host", "network is unreachable", "TLS handshake timeout", "Client.Timeout exceeded", "failed to do request*deadline exceeded"},
		text: "the registry, or a server that belongs to it, cannot be reached", cure: tryRegistry},

	// What ends and removes.
	{of: stopping, words: []string{"cni plugin not initialized", "cni config uninitialized"}, text: "the runtime has no CNI configuration that it can use",
		cure: "install or mend the network plugin: the runtime wants a file in /etc/cni/net.d; the pod ends by itself at the next try"},
	{of: stopping, words: []string{"failed to destroy network", "failed to teardown pod", "netplugin failed"}, text: "its CNI plugin fails to remove the network",
		cure: "mend the CNI plugin named in the answer, or what it waits for; the pod ends by itself at the next try. Do not remove the pod by force: its address stays taken"},
	{of: stopping, likely: true, words: []string{"ttrpc: closed", "shim disconnected", "connect: connection refused", "no such process", "cannot find shim"}, text: "its shim is gone",
		cure: "look at the processes of the pod with crictl inspectp; restart the runtime, which then cleans up pods without a shim"},
	{of: stopping, likely: true, words: []string{"failed to get task*deadline exceeded"}, text: noAnswer, cure: wakeShim},
	{of: []string{"StopContainer"}, likely: true, words: []string{"context deadline exceeded"}, text: noAnswer, cure: wakeShim},
	{of: []string{"StopPodSandbox"}, likely: true, words: []string{"context deadline exceeded"}, text: "its CNI plugin or its shim did not answer",
		cure: "look for processes of a CNI plugin that do not end (ps, below the runtime's process), and at what they wait for. If there are none, " + wakeShim},
	{of: []string{"ExecSync"}, words: []string{"paused state", "paused container", "container is paused"}, text: "the container is paused",
		cure: "let it go on: ctr -n k8s.io task resume ID, with the container's id, or crio's runc resume. Find out who paused it: a backup, a checkpoint, or a person"},
	{of: []string{"ExecSync"}, words: noProgram, text: "its program is not in the container",
		cure: "correct the command of the probe or hook, or use an image that has the program; a shell is often missing in small images"},
	{of: []string{"ExecSync"}, words: notExecutable, text: "its program may not be executed by the user of the container",
		cure: "make it executable in the image (chmod +x), or run the container as a user who may"},
	{of: []string{"ExecSync"}, words: []string{"exec failed: container does not exist"}, text: "runc does not know the container, which may run on",
		cure: "find out who removed runc's state (below /run/containerd/runc or /run/runc). Delete the pod: nothing else ends its processes in order"},
	{of: []string{"ExecSync"}, likely: true, words: []string{"failed to load task*deadline exceeded", "failed to get task*deadline exceeded", "failed to create exec*deadline exceeded"}, text: noAnswer, cure: wakeShim},
	{of: []string{"RemoveImage"}, likely: true, words: []string{"image is in use by a container"},
		text: "a container that the runtime does not show to kubelet uses the image, such as one of podman or buildah, which keep theirs in the same storage as CRI-O",
		cure: "find the container with podman ps --all --external, and remove it there if nobody needs it; kubelet then removes the image. crictl images shows the name of the image"},
}

// inPath finds the path in an answer about a full disk; below ofOne are folders of single images, sandboxes and containers,
// which the runtime removes when it fails.
var (
	inPath = regexp.MustCompile(`(/[^\s":]+)"?: (?:no space left on device|disk quota exceeded)`)
	ofOne  = regexp.MustCompile(`(/(?:ingest|tmpmounts|snapshots))/.*|/[^/]*[0-9a-f]{32}.*`)
)

// folderOf returns the folder whose disk an answer says is full, "" if it does not say that.
func folderOf(answer string) string {
	m := inPath.FindStringSubmatch(answer)
	if m == nil || strings.Contains(answer, "processing tar file") || strings.Contains(answer, "unpacking failed") {
		return "" // CRI-O gives the path in the image
	}
	return ofOne.ReplaceAllString(path.Dir(m[1]), "$1")
}

// cureOf returns the cure of a cause that an answer of a runtime shows, with the folder of the answer and the address of the runtime.
func (v *view) cureOf(c *cause, answer, runtime string) string {
	cure := strings.ReplaceAll(c.cure, " DIR", strings.TrimSuffix(" "+folderOf(answer), " "))
	if at := v.addresses[runtime]; at != "" {
		cure = strings.ReplaceAll(cure, "crictl rmi --prune", "crictl -r unix://"+strings.TrimPrefix(at, "unix://")+" rmi --prune")
	}
	return cure
}
