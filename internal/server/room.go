package server

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/server/limits"
	"github.com/criproxy/criproxy/internal/server/listen"
)

// room makes room for one more connection of a socket, and reports whether there is some. A client that leaves
// connections open must not take the file descriptors that kubelet's connection, the runtimes and files need.
//
// At the bound, it ends connections that have sent nothing, and then asks those without a call to leave, the one first that was
// unused for the longest. If that makes no room, a socket other than the main one refuses the new connection. The main one never
// does: kubelet must get through.
func (p *Proxy) room(s *listen.Socket) bool {
	most := p.mostConns(s)
	crowd := p.server.Trim(s, most-1, s.Silent)
	// Without a call, those that were asked to leave have been closed at twice the bound.
	refused := !s.Limits.Main.Load() && (crowd.Left >= most || crowd.All >= 2*most)
	ended := int64(crowd.Ended)
	if refused {
		ended++
	}
	if ended > 0 && s.Ended.Add(ended) == ended {
		klog.ErrorS(nil, "A socket has as many connections as its share of file descriptors allows: idle ones end, and if there are none, new ones are refused; further ones are not logged",
			"socket", s.Path, "most", most, "clients", strings.Join(holders(p.clients()[s]), "; "))
	}
	return !refused
}

// mostConns returns how many connections a socket may have: its share of the file descriptors of the process, of which the main
// socket has the largest.
func (p *Proxy) mostConns(s *listen.Socket) int {
	main, other := limits.MostConns(len(p.sockets()) - 1)
	if s.Limits.Main.Load() {
		return main
	}
	return other
}

// mostHolders is how many clients are named of those that hold connections.
const mostHolders = 3

// holders lists the clients with the most connections. The log and status name them, so that people know which client to mend.
func holders(clients map[string]int) []string {
	names := slices.SortedFunc(maps.Keys(clients), func(a, b string) int {
		return cmp.Or(clients[b]-clients[a], strings.Compare(a, b))
	})
	var all []string
	for _, name := range names[:min(len(names), mostHolders)] {
		all = append(all, fmt.Sprintf("%d of %s", clients[name], name))
	}
	return all
}

// connectionsOf returns the state of the connections of a socket.
func (p *Proxy) connectionsOf(s *listen.Socket, clients map[string]int) admin.Connections {
	c := admin.Connections{Most: p.mostConns(s), Ended: s.Ended.Load(), Clients: holders(clients)}
	for _, n := range clients {
		c.Now += n
	}
	return c
}
