package node

import (
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
)

var wiring = Rule{
	Name: "wiring",
	Symptoms: []string{"expected cgroupspath to be of format", "no runtime for*is configured", "failed to find runtime handler", "unknown service runtime.v1", "networkpluginnotready", "network plugin returns error", "cni plugin not initialized",
		"container runtime network not ready", "refused at*plugin", "runtimeclass*not found", "evented pleg", "getcontainerevents"},
	Means: "kubelet, criproxy, a runtime and the network are configured so that they do not go together.",
	Shown: "answers with which a runtime refuses what kubelet asks for, and the conditions in the runtime's Status",
	Not:   "a passing fault: the same call fails again until the configuration changes",
	Cure:  "correct the configuration on one of the two sides",
	find: func(v *view) []Finding {
		return append(v.notReady(), v.refused()...)
	},
}

// misfits are configurations that do not go together, which the answer of a runtime tells.
var misfits = []obstacle{
	{[]string{"expected cgroupsPath to be of format"}, "the cgroup drivers differ: the runtime uses systemd, kubelet cgroupfs", Certain,
		"give the runtime the driver that kubelet has: SystemdCgroup in containerd's runc options, cgroup_manager in CRI-O, cgroupDriver of kubelet. criproxy doctor compares them"},
	{[]string{"no runtime for ", "failed to find runtime handler"}, "the runtime has no such RuntimeClass handler", Certain,
		"add the handler to the runtime's configuration, or map it to the runtime that has it with backends[].handlers; criproxy check shows where each goes"},
	{[]string{"unknown service runtime."}, "the runtime does not speak this version of CRI", Certain, "use a runtime and a kubelet that share a version of CRI; criproxy status shows the version of each runtime"},
	{[]string{": refused at "}, "a plugin of criproxy refuses it", Certain, "read the plugin's reason; criproxy hooks shows the plugins, and what each has refused"},
	{[]string{"cni plugin not initialized", "cni config uninitialized"}, "the runtime has no CNI configuration", Certain, "install or mend the network plugin: the runtime wants a file in /etc/cni/net.d"},
}

// refused finds calls that a runtime refuses because of the configuration.
func (v *view) refused() []Finding {
	var found []Finding
	failed := v.of(func(c *call) bool { return c.kubelet() && c.failed() }, "RunPodSandbox", "CreateContainer", "StartContainer", "PullImage", "Version", "ListPodSandbox", "ListContainers", "Status", "GetContainerEvents")
	kind := func(c *call) *obstacle {
		for i := range misfits {
			if containsAny(c.message, misfits[i].words) {
				return &misfits[i]
			}
		}
		return nil
	}
	for _, all := range groups(failed, func(c *call) string {
		if m := kind(c); m != nil {
			return m.text + c.slowest() + c.object()
		}
		return ""
	}) {
		f, last := shown(all), all[len(all)-1]
		m := kind(last)
		f.About, f.Level, f.Sure, f.Cure = on(last), Error, m.sure, m.cure
		f.Text = fmt.Sprintf("%s of %s on %s was refused %s: %s: %s", last.method, last.object(), on(last), times(len(all)), m.text, cut(last.message, 160))
		f.Text = strings.Replace(f.Text, " of  on", " on", 1)
		f.Over = v.succeeded(last)
		if f.Over {
			f.Level = Warning
		}
		found = append(found, f)
	}
	return found
}

// notReady finds runtimes that report that they, or their network, are not ready.
func (v *view) notReady() []Finding {
	var found []Finding
	asked := v.of((*call).ok, "Status")
	for _, all := range groups(filter(asked, func(c *call) bool { return c.said != "" }), func(c *call) string { return c.said }) {
		f, last := shown(all), all[len(all)-1]
		f.About, f.Level = on(last), Error
		f.Text = fmt.Sprintf("the runtime reports %s", cut(last.said, 240))
		f.Not = "a fault of kubelet's: it passes on what the runtime says"
		f.Cure = "NetworkReady=false: install or mend the network plugin, which writes a file to /etc/cni/net.d; RuntimeReady=false: read the runtime's log"
		if newest := asked[len(asked)-1]; newest.said == "" {
			f.Over, f.Level = true, Warning
			f.Text += fmt.Sprintf(", from %s; it is ready since %s", clock(f.Since), clock(newest.began))
		}
		found = append(found, f)
	}
	return found
}

// succeeded reports whether a later call of the method about the same thing succeeded.
func (v *view) succeeded(failed *call) bool {
	for _, c := range v.calls {
		if c.ok() && c.method == failed.method && c.began.After(failed.began) && c.object() == failed.object() {
			return true
		}
	}
	return false
}

var repeated = Rule{
	Name:     "keeps-failing",
	Symptoms: []string{"createpodsandboxerror", "createcontainererror", "runcontainererror", "error syncing pod", "failed to create pod sandbox", "failed to start container", "failedcreatepodsandbox"},
	Means:    "kubelet repeats a call, and it fails each time in the same way.",
	Shown:    "RunPodSandbox, CreateContainer or StartContainer for one pod that fail at least three times with the same code",
	Not:      "a deadline: the runtime has answered",
	Cure:     "the answer of the runtime says what it lacks; the pod starts by itself at the next try when that is mended",
	find: func(v *view) []Finding {
		var found []Finding
		for _, all := range groups(v.of((*call).kubelet, "RunPodSandbox", "CreateContainer", "StartContainer"), func(c *call) string {
			if c.pod() == "" {
				return ""
			}
			return c.method + " " + c.object()
		}) {
			failed := filter(all, func(c *call) bool {
				known := isReserved(c.message) || c.code == codes.DeadlineExceeded || c.code == codes.Unavailable
				for _, m := range misfits {
					known = known || containsAny(c.message, m.words)
				}
				return c.failed() && !known
			})
			if len(failed) < 3 || !all[len(all)-1].failed() {
				continue
			}
			f, last := shown(failed), failed[len(failed)-1]
			f.About, f.Level = last.object(), Error
			f.Text = fmt.Sprintf("%s of %s on %s failed %s: %s", last.method, f.About, on(last), times(len(failed)), cut(last.message, 240))
			found = append(found, f)
		}
		return found
	},
}
