package why

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

var wiring = Rule{
	Name: "wiring",
	Symptoms: []string{"expected cgroupspath to be of format", "no runtime for*is configured", "failed to find runtime handler", "unknown service runtime.v1", "runtime api version is not supported", "networkpluginnotready", "network plugin returns error", "cni plugin not initialized",
		"container runtime network not ready", "refused at*plugin", "runtimeclass*not found", "evented pleg", "getcontainerevents"},
	Means: "kubelet, criproxy, a runtime and the network are configured so that they do not go together.",
	Shown: "answers with which a runtime refuses what kubelet asks for, the conditions in the runtime's Status, and what criproxy noticed of its own configuration and plugins",
	Not:   "a passing fault: the same call fails again until the configuration changes",
	Cure:  "correct the configuration on one of the two sides",

	outlives: true,
	find: func(v *view) []Finding {
		return slices.Concat(v.notReady(), v.refused(), v.slowPlugins(), v.noEvents(), v.ofCriproxy())
	},
}

// refused finds calls that a runtime refuses because of the configuration.
func (v *view) refused() []Finding {
	var found []Finding
	failed := v.of(func(c *call) bool { return c.kubelet() && c.failed() }, asking...)
	for _, all := range groups(failed, func(c *call) string {
		if m := causeOf(c.method, c.message); m != nil && m.misfit {
			return m.text + c.runtime() + c.object()
		}
		return ""
	}) {
		f, last := shown(all), all[len(all)-1]
		m := causeOf(last.method, last.message)
		f.About, f.Level, f.Cure = on(last), Error, m.cure
		name := cmp.Or(last.runtime(), backend.NameIn(last.message))
		if name != "" {
			f.Backends = []string{name} // a list asks all, and one fails
		}
		if len(last.legs) == 0 {
			f.About = cmp.Or(name, "criproxy")
		}
		what := and(methodsOf(all))
		if last.object() != "" && len(last.legs) > 0 {
			what += " on " + f.About
		}
		f.Text = fmt.Sprintf("%s: %s failed %s: %s: %s", cmp.Or(last.object(), name, f.About), what, times(len(all)), m.text, last.message)
		if has := v.handlersOf(on(last)); m.text == noHandler && has != "" {
			f.Text += "; it has " + has
		}
		if ok := v.next(last, last.runtime(), func(c *call) bool { return c.method == last.method && c.object() == last.object() }); ok != nil {
			f.end("", ok)
		} else if v.stopped(all) {
			f.end(notTried)
		}
		found = append(found, f)
	}
	return found
}

// handlersOf returns the handlers that a runtime said last that it has.
func (v *view) handlersOf(backend string) string {
	for _, c := range slices.Backward(v.calls) {
		for _, one := range c.legs {
			if has := one.has; one.backend == backend && has != "" {
				return has
			} else if one.backend == backend && len(c.legs) == 1 && c.has != "" {
				return c.has // recordings have a message once
			}
		}
	}
	return ""
}

// notReady finds runtimes that report that they, or their network, are not ready.
func (v *view) notReady() []Finding {
	var found []Finding
	asked := v.of((*call).ok, "Status")
	names := runtimesOf(asked)
	if len(names) == 0 {
		names = []string{""} // the recording has only what clients saw
	}
	for _, name := range names {
		answers := filter(asked, func(c *call) bool { return c.answered(name) })
		all := filter(answers, func(c *call) bool { return c.saidBy(name) != "" })
		if len(all) == 0 {
			continue
		}
		f, last := shown(all), all[len(all)-1] // it may have said it in other words before
		f.About, f.Level = cmp.Or(name, "the runtime"), Error
		if name != "" {
			f.Backends = []string{name}
		}
		f.Text, f.past = f.About+" reports "+last.saidBy(name), f.About+" reported "+last.saidBy(name)
		f.Not = "a fault of kubelet's: the runtime says so of itself"
		f.Cure = "NetworkReady=false: install or mend the network plugin, which writes a file to /etc/cni/net.d; RuntimeReady=false: read the runtime's log"
		ready := slices.IndexFunc(answers, func(c *call) bool { return c.began.After(last.began) })
		if ready >= 0 {
			f.end(fmt.Sprintf(", from %s; it is ready since %s", clock(f.Since), clock(answers[ready].began)), answers[ready])
		} else if v.away(name, v.now) {
			f.end("; it is gone now")
		}
		found = append(found, f)
	}
	return found
}

// slowPlugin is how long plugins may take for a call. kubelet gives most calls two minutes.
const slowPlugin = time.Second

// slowPlugins finds calls that reach a runtime late, because plugins are asked first. If calls for which no plugin is asked are
// late as well, criproxy waits for the runtime, or has no time of a processor.
func (v *view) slowPlugins() []Finding {
	if v.blind() {
		return nil
	}
	others := v.of(func(c *call) bool { return c.beforeRuntime() >= slowPlugin/2 }, plegCalls...)
	late := v.of(func(c *call) bool {
		return c.kubelet() && c.ended && c.beforeRuntime() >= slowPlugin && !slices.ContainsFunc(others, func(o *call) bool {
			return o.began.Before(c.began.Add(c.beforeRuntime())) && o.began.Add(o.beforeRuntime()).After(c.began)
		})
	}, starting...)
	var found []Finding
	for _, all := range groups(late, func(c *call) string { return c.method + " " + c.runtime() }) {
		f := shown(all)
		worst := slices.MaxFunc(all, func(a, b *call) int { return cmp.Compare(a.beforeRuntime(), b.beforeRuntime()) })
		f.decided(worst)
		f.About, f.Cause = "criproxy", "plugins of criproxy take this time"
		f.Text = fmt.Sprintf("%s waited %s in criproxy before its %s went to a runtime, %s", worst.object(), round(worst.beforeRuntime()), worst.method, times(len(all)))
		f.Not = "the runtime: it had not been asked"
		f.Cure = "criproxy hooks shows the plugins and how long each takes; mend the slow one, or give it a shorter timeout in its file"
		f.Over = v.next(all[len(all)-1], worst.runtime(), func(c *call) bool { return c.kubelet() && c.method == worst.method && c.beforeRuntime() < slowPlugin }) != nil
		found = append(found, f)
	}
	return found
}

// beforeRuntime returns how long a call waited before the first runtime was asked.
func (c *call) beforeRuntime() time.Duration {
	if len(c.legs) == 0 && c.gaveUp() {
		return c.took
	} else if len(c.legs) == 0 {
		return 0
	}
	first := slices.MinFunc(c.legs, func(a, b leg) int { return cmp.Compare(a.after, b.after) })
	if first.took == 0 {
		return 0 // its beginning is missing
	}
	return first.after
}

// eventTries is how often kubelet tries GetContainerEvents before it gives up evented PLEG: eventedPLEGMaxStreamRetries
// of kubelet.
const eventTries = 5

// noEvents finds kubelets that have given up evented PLEG.
func (v *view) noEvents() []Finding {
	var found []Finding
	tries := filter(v.calls, func(c *call) bool { return c.kubelet() && c.method == "GetContainerEvents" }) // whatever it failed for
	for _, all := range groups(tries, func(c *call) string { return fmt.Sprint(c.pid) }) {
		failed := filter(all, (*call).failed)
		last := all[len(all)-1]
		if len(failed) < eventTries || !last.failed() {
			continue
		}
		f := shown(failed)
		f.About, f.Pods, f.Backends = "kubelet", nil, nil
		f.Text = fmt.Sprintf("kubelet has given up evented PLEG and lists all pods every second again: GetContainerEvents failed %s, the last time on %s with %s: %s", times(len(failed)), on(last), last.code, last.message)
		f.Not = "an outage of the runtime: kubelet tries no more, even when the runtime has events again"
		f.Cure = "use a runtime that has GetContainerEvents (containerd from 1.7, CRI-O from 1.26), or turn the feature gate EventedPLEG off; restart kubelet, which then tries anew"
		found = append(found, f)
	}
	return found
}

// ofCriproxy finds what criproxy noticed of its configuration and plugins, and that has not changed since: a configuration that it
// refused, a plugin that it cannot ask, and a runtime that was removed from the configuration with its pods.
func (v *view) ofCriproxy() []Finding {
	var refused *capture.Change
	down, removed := map[string]*capture.Change{}, map[string]*capture.Change{} // :: plugin, runtime
	for _, c := range v.changes {
		switch {
		case c.What == capture.Refused:
			refused = c
		case c.What == capture.Reloaded || c.What == capture.Serving || c.What == capture.HandedOver:
			refused = nil
		case c.What == capture.PluginDown:
			down[c.Plugin] = c
		case c.Plugin != "":
			delete(down, c.Plugin)
		case c.What == capture.Removed:
			removed[c.Backend] = c
		case c.IsCondition():
			delete(removed, c.Backend)
		}
	}
	lasting := func(c *capture.Change, about, text, not, cure string) Finding {
		return Finding{Level: Warning, About: about, Since: c.Time, Last: v.now, Count: 1, Text: text, Not: not, Cure: cure, Evidence: []Proof{{c.Time, c.String()}}}
	}
	var found []Finding
	if refused != nil {
		found = append(found, lasting(refused, "criproxy", fmt.Sprintf("criproxy refused a new configuration at %s, and goes on with the one before: %s", clock(refused.Time), refused.Why),
			"kubelet or a runtime: no call fails because of it", "correct the file, and reload: criproxy check says what is wrong with it"))
	}
	for _, name := range slices.Sorted(maps.Keys(down)) {
		c := down[name]
		found = append(found, lasting(c, "criproxy", fmt.Sprintf("plugin %s is down since %s: %s", name, clock(c.Time), c.Why),
			"a runtime: criproxy asks the plugin first", "see whether the plugin runs; criproxy hooks shows it, and its policy: with Fail, calls that it is asked about fail; with Ignore, they go on without it"))
	}
	for _, name := range slices.Sorted(maps.Keys(removed)) {
		c := removed[name]
		pods := slices.DeleteFunc(podsOf(filter(v.calls, func(o *call) bool { return o.answered(name) })), func(pod string) bool {
			end := v.ended(pod, time.Time{})
			return end != nil && end.began.Before(c.Time)
		})
		if len(pods) == 0 {
			continue
		}
		f := lasting(c, name, fmt.Sprintf("%s is no longer in the configuration since %s, with %s; kubelet does not see what runs there", name, clock(c.Time), and(few(pods))),
			"the runtime: it is not asked any more", "if its pods are still needed, put it back and reload; otherwise end them with crictl --runtime-endpoint and its address")
		f.Backends, f.Pods = []string{name}, pods
		found = append(found, f)
	}
	return found
}
