package hook

import (
	"net"

	"google.golang.org/grpc"
)

// RunsIn makes the process that serves a plugin appear to be in another cgroup.
func (p *Plugins) RunsIn(plugin, cgroup string) {
	for _, one := range p.table.Load().plugins {
		if one.name == plugin {
			one.conn.cgroup.Store(&cgroup)
		}
	}
}

// CgroupOf returns the cgroup of the process at the other end.
func CgroupOf(nc net.Conn) string { return cgroupOf(nc) }

// AnswerBy sends the calls to a registered plugin to another connection.
func (p *Plugins) AnswerBy(plugin string, calls grpc.ClientConnInterface) {
	for _, one := range p.table.Load().plugins {
		if one.name == plugin {
			one.conn.calls = calls
		}
	}
}
