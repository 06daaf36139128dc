package server

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/observe/telemetry"
)

// evidence helps people find out what went wrong. It passes to the process that takes over. A file
// has it too, without the recorded calls and the changes, for the process that starts after a crash.
//
// Its parts belong to others, which restore them. Keys are only added, because an older or newer criproxy may read them.
//
//	part            belongs to             after a handover             after a crash
//	errors          telemetry.LastErrors   all                          all but those of the last 5 s
//	conditions      telemetry.Changes      as they are                  what the changes and this file come to
//	changes         telemetry.Changes      all that are in memory       those in changes.jsonl
//	recorded calls  telemetry.Recording    all, and those that follow   those in recorder-PID.blocks
type evidence struct {
	Errors []admin.CallError `json:"errors,omitempty"`
	telemetry.Conditions
	Changes  []capture.Change `json:"changes,omitempty"` // the oldest first; not in the file, because changes have files of their own
	Recorded []byte           `json:"recorded,omitempty"`
	Rest     bool             `json:"rest,omitempty"` // what is recorded later follows, if the next process asks for it
}

// evidenceKey is the key of the evidence among the encoded backends. Names of backends have no
// colon.
const evidenceKey = ":evidence"

// evidence returns the evidence of this process, without the recorded calls.
func (p *Proxy) evidence() evidence {
	return evidence{Errors: p.errors.List(), Conditions: p.changes.Conditions()}
}

// encodeEvidence returns the evidence for another process, or nil if that fails, and a follower of what is recorded later,
// nil if nothing is.
func (p *Proxy) encodeEvidence() ([]byte, *capture.Follower) {
	e := p.evidence()
	var rest *capture.Follower
	e.Recorded, rest = p.record.Snapshot()
	e.Rest = rest != nil
	e.Changes = p.changes.Latest()
	data, err := json.Marshal(e)
	if err != nil {
		klog.ErrorS(err, "The new process does not get the latest errors and calls")
	}
	return data, rest
}

// restoreEvidence takes over the evidence of the previous process, from that process or from its
// files. From the process all is of one moment. Of the files, changes.jsonl is the newest, and so decides the conditions. What cannot
// be read is lost, and the log says so: nothing of it matters to calls.
func (p *Proxy) restoreEvidence() {
	handed, ok := p.predecessor.backends()[evidenceKey]
	dir := p.stateDir()
	if !ok && dir != "" {
		handed, _ = os.ReadFile(evidenceFile(dir)) // the file need not exist
	}
	var e evidence
	var err error
	if len(handed) > 0 {
		err = json.Unmarshal(handed, &e)
	}
	if err == nil {
		if e.Rest {
			p.predecessor.passage = p.record.Passage()
		}
		p.errors.Restore(e.Errors)
		p.changes.Restore(e.Changes)
		switch {
		case len(e.Recorded) > 0:
			err = p.record.Restore(e.Recorded)
		case !ok && dir != "":
			p.record.RestoreFiles(dir, p.machine.Left)
		}
	}
	if ok {
		p.changes.RestoreConditions(e.Conditions)
	} else { // after the recording, which lacks what came after it
		p.changes.Replay(e.Conditions, p.crashes.follow)
	}
	if err != nil {
		klog.ErrorS(err, "Some of the latest errors and calls of the previous process cannot be read")
	}
}

// evidenceFile returns the path of the file. Its name is a promise.
func evidenceFile(dir string) string { return filepath.Join(dir, "evidence.json") }

// keepEvidence writes the evidence to a file periodically until ctx ends, and then once more,
// unless another process has it. A reader finds either the old file or the new one.
func (p *Proxy) keepEvidence(ctx context.Context, dir string) {
	var before []byte
	write := func() (again bool) {
		data, err := json.Marshal(p.evidence())
		if err != nil || bytes.Equal(data, before) {
			return true // unchanged; an error cannot happen
		}
		path := evidenceFile(dir)
		if err := os.WriteFile(path+".new", data, 0o600); err == nil {
			_ = os.Rename(path+".new", path)
		}
		before = data // even after a failure: the log already has one about a full disk
		return true
	}
	every(ctx, evidenceInterval, write)
	if !p.hasHandedOver() {
		write()
	}
}

// startKeeping keeps the evidence until stop is called, which returns when it is written, or until
// another process has it. Three goroutines write, each its own files, so that a large recording does not delay the errors: the
// changes until the end, because after a handover this process may have some that no other one has; the evidence and the
// recording until another process has them.
func (p *Proxy) startKeeping() (stop func()) {
	ended := make(chan struct{})
	over, end := context.WithCancel(p.handedOver)
	var wg sync.WaitGroup
	wg.Go(func() { p.changes.Keep(ended) })
	if dir := p.stateDir(); dir != "" {
		wg.Go(func() { p.keepEvidence(over, dir) })
		wg.Go(func() { p.record.Keep(dir, over.Done(), p.hasHandedOver) })
	}
	return func() {
		close(ended)
		end()
		wg.Wait()
	}
}

// evidenceInterval is how often the evidence is written. A crash loses the evidence since then.
const evidenceInterval = 5 * time.Second
