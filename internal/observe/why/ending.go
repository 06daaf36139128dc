package why

import "time"

// endWithPods ends a finding of a rule whose pods have all ended since. That is no cure of what kubelet tries until it succeeds.
func (v *view) endWithPods(r *Rule, f *Finding) {
	end := v.podsEnded(f)
	if f.Over || r.outlives || end == nil {
		return
	}
	how := "; the pod"
	if len(f.Pods) > 1 {
		how = "; the last of these pods"
	}
	if r.tried {
		how = notTried + ":" + how[1:]
	}
	f.end(how+" ended at "+clock(end.end()), end)
}

// podsEnded returns the call with which the last pod of a finding ended, or nil if one may be there still.
func (v *view) podsEnded(f *Finding) (last *call) {
	for _, pod := range f.Pods {
		end := v.ended(pod, f.Last)
		if end == nil {
			return nil
		}
		if last == nil || end.end().After(last.end()) {
			last = end
		}
	}
	return last
}

// ended returns the first call after a time that stopped or removed the latest sandbox of a pod, or nil if there is none or the
// pod was there afterwards. What stops after the runtime did not make it is no sandbox: kubelet cleans up before it tries again.
func (v *view) ended(pod string, after time.Time) (end *call) {
	latest, none := "", false // the id of its sandbox, as far as the calls say; that it could not be made
	for _, c := range v.calls {
		if c.own || c.pod() != pod {
			continue
		}
		switch c.method {
		case "StopPodSandbox", "RemovePodSandbox":
			if end == nil && !none && c.ok() && !c.end().Before(after) && (latest == "" || c.id() == latest) {
				end = c
			}
		case "RunPodSandbox":
			end, none = nil, c.failed()
			if c.ok() {
				latest = c.id()
			}
		case "PodSandboxStatus": // of the pod's sandbox, after kubelet has removed an older one
			if c.ok() && latest == "" && end != nil && c.id() != end.id() {
				end = nil
			}
		case "CreateContainer", "StartContainer", "PullImage", "ExecSync":
			end = nil
		}
	}
	return end
}

// backOff is the longest time that kubelet waits between two tries to pull an image, or to start a pod or a container.
const backOff = 5 * time.Minute

// retry returns the longest time after which kubelet repeats a call that a runtime refused. It syncs a pod without a sandbox after
// 10 s and half as much at random (backOffPeriod in kubelet's pod_workers.go), and removes what has ended once a minute at least.
func retry(method string) time.Duration {
	switch method {
	case "RunPodSandbox":
		return 15 * time.Second
	case "RemovePodSandbox", "RemoveContainer", "RemoveImage":
		return time.Minute
	}
	return backOff
}

const notTried = "; kubelet has not tried since"

// stopped reports whether kubelet has stopped trying: its last try is twice as long ago as two tries were apart, or as it may wait.
func (v *view) stopped(tries []*call) bool {
	return v.now.Sub(tries[len(tries)-1].end()) > 2*max(retry(tries[0].method), between(tries))
}

// between returns the longest time from the beginning of a call to that of the next one.
func between(all []*call) (longest time.Duration) {
	for i, c := range all[1:] {
		longest = max(longest, c.began.Sub(all[i].began))
	}
	return longest
}

// endTries ends a finding about those of some tries that failed: how says what the call success did in the end, which is nil if none
// has. Without one, the finding ends if kubelet has stopped trying.
func (v *view) endTries(f *Finding, tries, failed []*call, how string, success *call) {
	if success != nil {
		f.end("; it "+how+" at "+clock(success.end()), success)
	} else if tries[len(tries)-1].ended && v.stopped(failed) {
		f.end(notTried)
	}
}

// succeeded returns the last one of some tries if it has succeeded, and otherwise nil.
func succeeded(tries []*call) *call {
	if last := tries[len(tries)-1]; last.ok() {
		return last
	}
	return nil
}
