package daemon

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// evidence helps people find out what went wrong. It passes to the process that takes over. A file
// has it too, without the recorded calls and the changes, for the process that starts after a crash.
type evidence struct {
	Errors   []admin.CallError `json:"errors,omitempty"`
	Backends map[string]noted  `json:"backends,omitempty"` // :: name
	Changes  []capture.Change  `json:"changes,omitempty"`  // the oldest first; only if no file has them
	Recorded []byte            `json:"recorded,omitempty"`
}

// evidenceKey is the key of the evidence among the memories of backends. Names of backends have no
// colon.
const evidenceKey = ":evidence"

// evidence returns the evidence of this process, without the recorded calls.
func (p *Proxy) evidence() evidence {
	return evidence{Errors: p.errors.List(), Backends: p.records.allNotes()}
}

// encodeEvidence returns the evidence for another process, or nil if that fails.
func (p *Proxy) encodeEvidence() []byte {
	e := p.evidence()
	e.Recorded = p.record.Snapshot()
	e.Changes = p.changes.Latest()
	data, err := json.Marshal(e)
	if err != nil {
		klog.ErrorS(err, "The new process does not get the latest errors and calls")
	}
	return data
}

// restoreEvidence takes over the evidence of the previous process, from that process or from its
// files.
func (p *Proxy) restoreEvidence() {
	handed, ok := p.legacy.memories()[evidenceKey]
	dir := p.evidenceDir()
	if !ok && dir != "" {
		handed, _ = os.ReadFile(evidenceFile(dir)) // the file need not exist
	}
	var e evidence
	var err error
	if len(handed) > 0 {
		err = json.Unmarshal(handed, &e)
	}
	if err == nil {
		p.errors.Restore(e.Errors)
		p.changes.Restore(e.Changes)
		switch {
		case len(e.Recorded) > 0:
			err = p.record.Restore(bytes.NewReader(e.Recorded))
		case !ok && dir != "":
			err = p.record.RestoreFiles(dir)
		}
	}
	if ok {
		p.records.restoreNotes(e.Backends, true)
	} else { // after the recording, which lacks what came after it
		p.records.replayNotes(e.Backends, p.changes.Replay)
	}
	if err != nil {
		klog.ErrorS(err, "Some of the latest errors and calls of the previous process cannot be read")
	}
}

// evidenceDir returns the folder for the evidence: that of the memories of the backends. It is empty
// if there is none.
func (p *Proxy) evidenceDir() string {
	cfg := p.Config()
	if p.shows || len(cfg.Backends) < 2 {
		return ""
	}
	return cfg.StateDir
}

func evidenceFile(dir string) string { return filepath.Join(dir, "evidence.json") }

// keepEvidence writes the evidence to a file periodically until stop is closed, and then once more,
// unless another process has it.
func (p *Proxy) keepEvidence(dir string, stop <-chan struct{}, passedOn func() bool) {
	var before []byte
	write := func() {
		data, err := json.Marshal(p.evidence())
		if err != nil || bytes.Equal(data, before) {
			return // unchanged; an error cannot happen
		}
		path := evidenceFile(dir)
		if err := os.WriteFile(path+".new", data, 0o600); err == nil {
			_ = os.Rename(path+".new", path)
		}
		before = data // even after a failure: the log already has one about a full disk
	}
	tick := time.NewTicker(evidenceInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			write()
		case <-stop:
			if !passedOn() {
				write()
			}
			return
		}
	}
}

// startKeeping keeps the evidence until stop is called, which returns when it is written, or until
// another process has it.
func (p *Proxy) startKeeping() (stop func()) {
	ended := make(chan struct{})
	var wg sync.WaitGroup
	over := make(chan struct{})
	wg.Go(func() {
		select {
		case <-p.handedOver:
		case <-ended:
		}
		close(over)
	})
	passedOn := func() bool {
		select {
		case <-p.handedOver:
			return true
		default:
			return false
		}
	}
	wg.Go(func() { p.changes.Keep(ended) })
	if dir := p.evidenceDir(); dir != "" {
		wg.Go(func() { p.keepEvidence(dir, over, passedOn) })
		wg.Go(func() { p.record.Keep(dir, over, passedOn) })
	}
	return func() {
		close(ended)
		wg.Wait()
	}
}

// evidenceInterval is how often the evidence is written. A crash loses the evidence since then.
const evidenceInterval = 5 * time.Second
