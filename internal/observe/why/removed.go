package why

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/criproxy/criproxy/internal/observe/capture"
)

var notRemoved = Rule{
	Name:     "not-removed",
	Symptoms: []string{"failed to remove container", "container garbage collection failed", "containergcfailed", "failed to remove sandbox", "removepodsandbox from runtime service failed", "removecontainer from runtime service failed", "failed to garbage collect required amount of images", "imagegcfailed", "image garbage collection failed multiple times in a row", "freediskspacefailed", "removeimage from image service failed", "failed to remove image"},
	Means:    "kubelet wants to remove a sandbox, a container or an image that it no longer needs, and the runtime cannot: it stays on the node and takes disk and addresses.",
	Shown:    "RemovePodSandbox, RemoveContainer or RemoveImage of one id that fails again and again",
	Not:      "a pod that runs: kubelet removes only what has ended, and images that no container of its pods uses",
	Cure:     "read the runtime's answer. Remove the thing by hand (crictl rmp, rm or rmi) when what it names is mended; mounts that are busy show in findmnt",
	outlives: true,
	find:     staying,
}

// leastTries is how often a removal must fail before why reports it.
const leastTries = 3

// staying finds what kubelet cannot remove, or could not for some time: each sandbox and container, and the images of a runtime together.
func staying(v *view) []Finding {
	what := func(c *call) string { return c.method + " " + cmp.Or(c.id(), c.about.Image) }
	tried := v.of(func(c *call) bool { return c.ok() || c.kubelet() && c.failed() }, "RemovePodSandbox", "RemoveContainer", "RemoveImage")
	var fails []*call
	removed := map[string]*call{} // :: what → the call that removed it in the end
	for _, all := range groups(tried, what) {
		failed, last := filter(all, (*call).failed), all[len(all)-1]
		if len(failed) < leastTries || last.ok() && last.method == "RemoveImage" {
			continue
		}
		if last.ok() {
			removed[what(last)] = last
		}
		fails = append(fails, failed...)
	}
	slices.SortStableFunc(fails, func(a, b *call) int { return a.began.Compare(b.began) })
	var found []Finding
	for _, all := range groups(fails, func(c *call) string {
		if c.method == "RemoveImage" {
			return c.method + " " + on(c)
		}
		return what(c)
	}) {
		f, last := shown(all), all[len(all)-1]
		f.About = last.target()
		it, more := f.About, ""
		if last.method == "RemoveImage" {
			if it = "image " + f.About; v.imageOf(last) != f.About { // else only its id is known
				f.About = v.imageOf(last)
				it = f.About
			}
		}
		if n := len(groups(all, what)) - 1; n > 0 {
			more = " and " + capture.Count(n, "other image")
		}
		say := func(cannot string) string {
			return fmt.Sprintf("%s%s %s be removed from %s: %s was tried %s, and the last answer was: %s", it, more, cannot, on(last), last.method, times(len(all)), last.message)
		}
		f.Text, f.past = say("cannot"), say("could not")
		if c := causeOf(last.method, last.message); c != nil {
			f.Cause, f.Cure = c.text, c.cure
		}
		v.endTries(&f, all, all, "was removed", removed[what(last)])
		found = append(found, f)
	}
	return found
}

// imageOf returns the image that a call is about, by its name if another call says it.
func (v *view) imageOf(c *call) string {
	i := slices.IndexFunc(v.calls, func(o *call) bool {
		return o.method == "ImageStatus" && o.about.Image != c.about.Image && slices.Contains(o.about.IDs, c.about.Image)
	})
	if i < 0 {
		return c.about.Image
	}
	return v.calls[i].about.Image
}
