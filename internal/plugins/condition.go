package plugins

import "context"

// states returns the state of each plugin that has a file, in the order of their names. It follows from the plugin's file and
// from the state of its connection. p.mu is held.
func (p *Plugins) states() []PluginState {
	loaded := map[string]*plugin{}
	for _, pl := range p.table.Load().plugins {
		loaded[pl.name] = pl
	}
	all := []PluginState{}
	for _, name := range sortedKeys(p.folder.files) {
		s := PluginState{Name: name, State: StateBroken}
		if pl := loaded[name]; pl != nil {
			s = pl.state()
		}
		if mistake := p.folder.files[name].err; mistake != nil {
			if s.Error != "" {
				s.Error += "; "
			}
			s.Error += mistake.Error()
		}
		all = append(all, s)
	}
	return all
}

// changed is called when a connection has another state.
func (p *Plugins) changed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.judge()
}

// judge reports the states of all plugins. p.mu is held.
func (p *Plugins) judge() {
	all := p.states()
	for i := range all {
		s := &all[i]
		if s.State == StateBroken && s.Error == "" || s.State == StateDown && p.folder.lacks(s.Name) {
			s.State, s.Error = StateConnecting, "" // its file is still being written, or it has left, which reload reports
		}
	}
	p.report(context.Background(), States(all))
}
