package model

import (
	"strings"
	"time"
)

// A situation is what is wrong when a client makes a call, and what criproxy makes of it.
type situation struct {
	fault     string // of a runtime that the call concerns, or what an operator has just done
	operation string
	condition string // of that runtime, when the call ends
}

// operationNames are the kinds of calls.
var operationNames = []string{"list", "list with a filter", "status", "create", "start or stop", "remove", "exec", "merged"}

// conditions are those of a runtime; empty: the fault concerns all of them.
var conditions = []string{"up", "slow", "gone", ""}

const (
	cutClient = "a client's connection is cut"
	upgrade   = "a runtime comes back with another version of CRI"
)

// operationOf returns the kind of a call.
func operationOf(c *call) string {
	switch c.method {
	case "ListPodSandbox", "ListContainers", "StreamPodSandboxes", "StreamContainers":
		if c.about != "" {
			return "list with a filter"
		}
		return "list"
	case "PodSandboxStatus", "ContainerStatus":
		return "status"
	case "RunPodSandbox", "CreateContainer":
		return "create"
	case "StartContainer", "StopContainer", "StopPodSandbox":
		return "start or stop"
	case "RemoveContainer", "RemovePodSandbox":
		return "remove"
	case "ExecSync":
		return "exec"
	}
	return "merged"
}

// operated notes what the operator does.
func (w *world) operated(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.operation, w.operatedAt = what, time.Now()
}

// meets counts the situations of a call. mu is held.
func (w *world) meets(c *call) {
	operation := operationOf(c)
	if w.operation != "" && !c.ended.Before(w.operatedAt) && c.began.Before(w.operatedAt.Add(time.Second)) {
		w.met[situation{w.operation, operation, ""}]++
	}
	if c.err != nil && c.cut && c.proxy.ctx.Err() == nil {
		w.met[situation{cutClient, operation, ""}]++
	}
	concerned := c.cfg.all()
	if c.about != "" && operation != "list with a filter" { // it is about one item
		i, _ := c.cfg.locate(c.about)
		concerned = concerned[i : i+1]
	}
	for _, b := range concerned {
		condition := c.proxy.condition(b).State
		if condition == "" {
			continue // a reload has just removed it
		}
		for _, p := range b.runtime.during(c.began, c.ended) {
			w.met[situation{p.name, operation, condition}]++
		}
	}
}

// judgeRest lets all runtimes recover, waits, and reports calls and memory that criproxy has not given up by then.
func (w *world) judgeRest() {
	for _, r := range w.runtimes {
		r.turns(clear(), r.address())
	}
	time.Sleep(3 * time.Minute)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.judgeMistakes()
	for _, r := range w.runtimes {
		if r.active > 0 {
			w.violated("runtime %s has %d calls of clients that have gone", r.name, r.active)
		}
	}
	if w.now == nil {
		return
	}
	w.judgeMetrics(w.now)
	if metrics := string(w.now.asks("/metrics")); !strings.Contains(metrics, "\ncriproxy_message_memory_bytes 0\n") {
		w.violated("at rest, messages take memory: %s", metrics)
	}
	for _, b := range w.now.proxy.Health().Backends {
		if b.State != "up" && w.now.cfg.has(b.Name) {
			w.violated("at rest, backend %s is %s: %v", b.Name, b.State, b.Err)
		}
	}
}
