package why

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

var pulls = Rule{
	Name:     "pull",
	Symptoms: []string{"errimagepull", "imagepullbackoff", "failed to pull image", "pulling image", "pullimage from image service failed", "failed to pull and unpack image", "containercreating"},
	Means:    "a pull of an image hangs, or fails again and again. Unless kubelet may pull in parallel (serializeImagePulls: false), all other pulls of the node wait for it.",
	Shown:    "a PullImage that is under way for long, images that kubelet missed meanwhile and did not pull, or pulls that fail; or an image that kubelet misses again and again without a pull",
	Not:      "kubelet: it has sent the pull to the runtime",
	Cure:     "read the runtime's answer. If the pull hangs, " + tryRegistry + ". To let other pods pull meanwhile, set serializeImagePulls: false and maxParallelImagePulls in kubelet's configuration",
	tried:    true,
	find: func(v *view) []Finding {
		pulled := v.of((*call).kubelet, "PullImage")
		return slices.Concat(v.hanging(pulled), v.failing(pulled), v.neverPulled(pulled))
	},
}

// longPull is how long a pull is under way before why says so. A large image takes minutes, so that is no fault as long as no
// other image is needed.
const longPull = time.Minute

// hanging finds pulls that are under way for long.
func (v *view) hanging(pulled []*call) []Finding {
	var found []Finding
	for _, c := range pulled {
		if c.ended || c.took < longPull || c.about.Image == "" {
			continue
		}
		missing := v.waiting(c)
		var waiting []string
		for _, one := range missing {
			waiting = append(waiting, one.about.Image)
		}
		f := shown([]*call{c})
		f.decided(missing[:min(len(missing), maxProofs)]...)
		f.About, f.Cause = registryOf(c.about.Image), "the registry is slow or hangs, or the image is very large"
		f.Text = fmt.Sprintf("%s has been pulling %s for %s", c.actor(), withRegistry(c.about.Image), round(c.took))
		if p := c.pod(); p != "" {
			f.Text += ", for " + p
		}
		if len(waiting) > 0 {
			f.Text += fmt.Sprintf("; kubelet has not asked for %s since, which it needs as well", strings.Join(waiting, ", "))
			f.Cause += "; kubelet pulls one image at a time"
			if pods := v.podsWithout(waiting); len(pods) > 0 {
				f.Pods = append(f.Pods, pods...)
				slices.Sort(f.Pods)
				f.Cause += ", and " + and(few(pods)) + " waited for that"
			}
		} else {
			f.Level = Note
		}
		found = append(found, f)
	}
	return found
}

// waiting returns the calls with which kubelet missed images since a pull began that it has not pulled, the first of each.
func (v *view) waiting(pull *call) []*call {
	tried := map[string]time.Time{} // :: image → when its pull failed last: kubelet waits before the next
	var missed []*call
	for _, c := range v.calls {
		if c.own || !c.kubelet() || c.about.Image == "" || c.about.Image == pull.about.Image {
			continue
		}
		if c.method == "PullImage" && c.failed() {
			tried[c.about.Image] = c.end()
		}
		same := func(o *call) bool { return o.about.Image == c.about.Image }
		switch {
		case c.end().Before(pull.began):
		case c.method == "ImageStatus" && c.lacks && v.now.Sub(c.began) >= time.Second && c.began.Sub(tried[c.about.Image]) > backOff:
			if !slices.ContainsFunc(missed, same) {
				missed = append(missed, c)
			}
		case c.method == "PullImage" || c.method == "ImageStatus" && c.ok() && !c.lacks:
			missed = slices.DeleteFunc(missed, same)
		}
	}
	return missed
}

// soon is how long after it has made a sandbox kubelet looks for the image of the first container, at most.
const soon = 5 * time.Second

// podsWithout returns the pods that have a sandbox and no container since kubelet missed one of some images. No call says which pod
// needs an image.
func (v *view) podsWithout(images []string) []string {
	made, waiting := map[string]time.Time{}, map[string]bool{} // :: pod → when it got its sandbox, and whether it waits
	for _, c := range v.calls {
		switch {
		case c.own || !c.kubelet():
		case c.method == "RunPodSandbox" && c.ok():
			made[c.pod()] = c.end()
		case slices.Contains([]string{"CreateContainer", "StopPodSandbox", "RemovePodSandbox"}, c.method):
			delete(made, c.pod())
			delete(waiting, c.pod())
		case c.method == "ImageStatus" && c.lacks && slices.Contains(images, c.about.Image):
			for pod, at := range made {
				if since := c.began.Sub(at); since >= 0 && since < soon {
					waiting[pod] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(waiting))
}

// failing finds images that a runtime fails to pull again and again.
func (v *view) failing(pulled []*call) []Finding {
	var found []Finding
	for _, all := range groups(pulled, func(c *call) string { return on(c) + " " + c.about.Image }) {
		failed := filter(all, (*call).failed)
		if len(failed) < 2 {
			continue
		}
		f, last := shown(failed), failed[len(failed)-1]
		f.About, f.Level, f.Show = registryOf(last.about.Image), Error, "-method PullImage -status '!OK'"
		why := "the last answer was"
		if c := causeOf(last.method, last.message); c != nil {
			why, f.Cure = c.text, v.cureOf(c, last.message, on(last))
			if c.text == diskFull {
				f.About, why = last.actor(), "a disk of "+last.actor()+" is full"
				if folder := folderOf(last.message); folder != "" {
					why += " (" + folder + ")"
				}
			}
		}
		f.Text = fmt.Sprintf("%s failed %s to pull %s%s: %s: %s", last.actor(), times(len(failed)), withRegistry(last.about.Image), forPods(f.Pods), why, last.message)
		if v.unasked(last) {
			f.Not = notAsked
		}
		if i := slices.IndexFunc(pulled, func(c *call) bool {
			return c.ok() && c.about.Image == last.about.Image && on(c) != on(last) && !c.end().Before(f.Since)
		}); i >= 0 {
			f.Text += fmt.Sprintf("; %s pulled it at %s", on(pulled[i]), clock(pulled[i].end()))
			f.decided(pulled[i])
		}
		v.endTries(&f, all, failed, "succeeded", succeeded(all))
		found = append(found, f)
	}
	return found
}

// neverPulled finds images that kubelet misses again and again and does not pull, although it waits for no other pull.
func (v *view) neverPulled(pulled []*call) []Finding {
	var found []Finding
	looks := v.of(func(c *call) bool { return c.kubelet() && c.ok() && c.about.Image != "" }, "ImageStatus")
	for _, all := range groups(looks, func(c *call) string { return on(c) + " " + c.about.Image }) {
		missed := filter(all, func(c *call) bool {
			return c.lacks && !slices.ContainsFunc(pulled, func(p *call) bool {
				return !p.began.After(c.began) && (p.end().After(c.began) || p.about.Image == c.about.Image && c.began.Sub(p.end()) < backOff)
			})
		})
		if len(missed) < 3 || missed[len(missed)-1].began.Sub(missed[0].began) < 2*retry("RunPodSandbox") {
			continue
		}
		f, last := shown(missed), missed[len(missed)-1]
		image := last.about.Image
		f.About, f.Level, f.Cause, f.Show = image, Error, "imagePullPolicy is Never", "-method 'ImageStatus|PullImage|RemoveImage' -find "+image
		f.Cure = "pull it onto the node (crictl pull " + image + "), or change imagePullPolicy. If the policy is another, kubelet's log says why it does not pull"
		f.Not = "the registry: nobody asked it"
		f.Pods = podsOf(filter(v.calls, func(c *call) bool {
			return c.kubelet() && c.method == "CreateContainer" && c.about.Image == image && on(c) == on(last)
		}))
		removed := ""
		for _, c := range v.calls {
			if c.method == "RemoveImage" && c.ok() && !c.own && !c.began.After(last.began) && c.about.Image == image {
				removed = fmt.Sprintf("; %s had removed it at %s", c.from, clock(c.began))
				f.decided(c)
			}
		}
		say := func(is string) string {
			return fmt.Sprintf("image %s %s missing on %s%s: kubelet looked for it %s since %s, and did not pull it%s", image, is, on(last), forPods(f.Pods), times(len(missed)), clock(f.Since), removed)
		}
		f.Text, f.past = say("is"), say("was")
		if newest := all[len(all)-1]; !newest.lacks {
			f.end("; it is there since "+clock(newest.began)+" or before", newest)
		} else if v.stopped(missed) {
			f.end(notTried)
		}
		found = append(found, f)
	}
	return found
}

// forPods says for which pods an image is; nothing if that is not known.
func forPods(pods []string) string {
	if len(pods) == 0 {
		return ""
	}
	return " for " + and(few(pods))
}

// withRegistry returns the name of an image, and its registry if the name does not begin with it.
func withRegistry(image string) string {
	if from := registryOf(image); !strings.HasPrefix(image, from) {
		return image + " from " + from
	}
	return image
}

// registryOf returns the registry in the name of an image.
func registryOf(image string) string {
	first, _, ok := strings.Cut(image, "/")
	if !ok || !strings.ContainsAny(first, ".:") && first != "localhost" {
		return "docker.io"
	}
	return first
}
