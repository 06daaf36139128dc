package hook

import (
	"net"

	"google.golang.org/grpc"
)

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

// AnswerBy has the questions to a plugin, which is there, go to another connection.
func (p *Plugins) AnswerBy(plugin string, calls grpc.ClientConnInterface) {
	for _, one := range p.table.Load().plugins {
		if one.name == plugin {
			one.conn.calls = calls
		}
	}
}
