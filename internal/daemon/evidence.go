package daemon

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/state"
)

// evidence is what people look for after something went wrong. The process that takes over gets
// it. Without the recorded calls it also goes into a file, for a process that starts after a crash.
type evidence struct {
	Errors   []state.CallError `json:"errors,omitempty"`
	Backends map[string]noted  `json:"backends,omitempty"` // :: name
	Recorded []byte            `json:"recorded,omitempty"`
}

// evidenceKey is that of the evidence among the memories of backends, whose names have no colon.
const evidenceKey = ":evidence"

// evidence returns the evidence of this process, without the recorded calls.
func (p *Proxy) evidence() evidence {
	return evidence{Errors: p.errors.List(), Backends: p.records.allNotes()}
}

// encodeEvidence is the evidence for another process, nil if that fails.
func (p *Proxy) encodeEvidence() []byte {
	e := p.evidence()
	e.Recorded = p.record.Snapshot()
	data, err := json.Marshal(e)
	if err != nil {
		klog.ErrorS(err, "The new process does not get the latest errors and calls")
	}
	return data
}

// restoreEvidence takes over the evidence of the process before this one: from itself, or from its
// files.
func (p *Proxy) restoreEvidence() {
	handed, ok := p.legacy.memories()[evidenceKey]
	dir := p.evidenceDir()
	if !ok && dir != "" {
		handed, _ = os.ReadFile(evidenceFile(dir)) // there may be none
	}
	var e evidence
	var err error
	if len(handed) > 0 {
		err = json.Unmarshal(handed, &e)
	}
	if err == nil {
		p.errors.Restore(e.Errors)
		p.records.restoreNotes(e.Backends)
		switch {
		case len(e.Recorded) > 0:
			err = p.record.Restore(bytes.NewReader(e.Recorded))
		case !ok && dir != "":
			err = p.record.RestoreFiles(dir)
		}
	}
	if err != nil {
		klog.ErrorS(err, "Some of the latest errors and calls of the process before this one cannot be read")
	}
}

// evidenceDir is where evidence is kept, beside the memories of the backends; empty if nowhere.
func (p *Proxy) evidenceDir() string {
	cfg := p.Config()
	if p.shows || len(cfg.Backends) < 2 {
		return ""
	}
	return cfg.StateDir
}

func evidenceFile(dir string) string { return filepath.Join(dir, "evidence.json") }

// keepEvidence writes the evidence now and then, until stop is closed or another process has it.
func (p *Proxy) keepEvidence(dir string, stop <-chan struct{}, passedOn func() bool) {
	var before []byte
	write := func() {
		data, err := json.Marshal(p.evidence())
		if err != nil || bytes.Equal(data, before) {
			return // it is plain data
		}
		path := evidenceFile(dir)
		if err := os.WriteFile(path+".new", data, 0o600); err == nil {
			_ = os.Rename(path+".new", path)
		}
		before = data // a full disk is in the log already, and this is not worth more of it
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
	if dir := p.evidenceDir(); dir != "" {
		wg.Go(func() { p.keepEvidence(dir, over, passedOn) })
		wg.Go(func() { p.record.Keep(dir, over, passedOn) })
	}
	return func() {
		close(ended)
		wg.Wait()
	}
}

// evidenceInterval is how often evidence is written: a crash loses so much of it.
const evidenceInterval = 5 * time.Second
