package plugins

import "time"

// A State describes all plugins. Its JSON is stable.
type State struct {
	Folder    string         `json:"folder"` // empty if plugins are turned off
	Plugins   []PluginState  `json:"plugins"`
	Known     map[string]int `json:"known"`     // objects by kind
	Conflicts int64          `json:"conflicts"` // changes of a field that an earlier plugin had changed
}

// The states of a plugin, as JSON and people have them.
const (
	StateReady      = "ready"
	StateConnecting = "connecting" // no attempt to connect has ended yet
	StateDown       = "down"       // it cannot be reached, or answers no call
	StateBroken     = "broken"     // its file has never been valid
	StateRemoved    = "removed"    // its file is gone; only among the States of an event
)

// PluginState describes one plugin. Its JSON is stable.
type PluginState struct {
	Name     string       `json:"name"` // of its file
	Socket   string       `json:"socket,omitempty"`
	Policy   string       `json:"policy,omitempty"`
	Timeout  string       `json:"timeout,omitempty"`
	State    string       `json:"state"`           // one of the states above
	Error    string       `json:"error,omitempty"` // why it is down, or what is wrong with its file now
	Warnings []string     `json:"warnings,omitempty"`
	Points   []PointState `json:"points,omitempty"`
}

// PointState counts the calls of a plugin at one point. Its JSON is stable.
type PointState struct {
	Name string `json:"name"`
	PointCounters
	Latency Latency `json:"latency"`
}

// State returns the state of all plugins, including those whose file is broken.
func (p *Plugins) State() State {
	known := p.facts.count()
	p.mu.Lock()
	defer p.mu.Unlock()
	return State{Folder: p.folder.path, Plugins: p.states(), Known: known, Conflicts: p.conflicts.Load()}
}

// state returns the state of a plugin, but for what is wrong with its file now.
func (p *plugin) state() PluginState {
	s := PluginState{Name: p.name, Socket: p.file.Endpoint, Policy: "Ignore", Timeout: p.file.Timeout.Round(time.Millisecond).String(), Warnings: p.warnings}
	if p.file.Fail {
		s.Policy = "Fail"
	}
	var why error
	if s.State, why = p.conn.state(); why != nil {
		s.Error = why.Error()
	}
	for _, hook := range p.file.Hooks { // sorted
		point := PointState{Name: hook}
		point.PointCounters, point.Latency = p.stats.of(hook)
		s.Points = append(s.Points, point)
	}
	return s
}
