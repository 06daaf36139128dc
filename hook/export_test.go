package hook

import "net"

// RunsIn makes the process that serves a plugin one of another cgroup.
func (p *Plugins) RunsIn(plugin, cgroup string) {
	for _, one := range p.table.Load().plugins {
		if one.name == plugin {
			one.conn.cgroup.Store(&cgroup)
		}
	}
}

// CgroupOf is the cgroup of the process at the other end.
func CgroupOf(nc net.Conn) string { return cgroupOf(nc) }
