package plugins

import (
	"context"
	"fmt"
)

// A Condition says whether a plugin can be asked. It follows from the plugin's file and from the state of its connection.
type Condition struct {
	Plugin string // the name of its file
	State  string // "ready", "connecting", "down", or "broken" if its file has never been valid
	Err    error  // why it is down, or what is wrong with its file now

	plugin *plugin // nil if its file has never been valid
}

// conditions returns the condition of each plugin that has a file, in the order of their names. p.mu is held.
func (p *Plugins) conditions() Conditions {
	loaded := map[string]*plugin{}
	for _, pl := range p.table.Load().plugins {
		loaded[pl.name] = pl
	}
	var all Conditions
	for _, name := range sortedKeys(p.folder.files) {
		c := Condition{Plugin: name, State: "broken", Err: p.folder.files[name].err, plugin: loaded[name]}
		if c.plugin != nil {
			mistake := c.Err
			c.State, c.Err = c.plugin.conn.state()
			switch {
			case c.Err == nil:
				c.Err = mistake
			case mistake != nil:
				c.Err = fmt.Errorf("%w; %w", c.Err, mistake)
			}
		}
		all = append(all, c)
	}
	return all
}

// changed is called when a connection has another state.
func (p *Plugins) changed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.judge()
}

// judge reports the conditions of all plugins. p.mu is held.
func (p *Plugins) judge() {
	all := p.conditions()
	for i := range all {
		c := &all[i]
		if c.State == "broken" && c.Err == nil || c.State == "down" && p.folder.lacks(c.Plugin) {
			c.State, c.Err = "connecting", nil // its file is still being written, or it has left, which reload reports
		}
	}
	p.report(context.Background(), all)
}
