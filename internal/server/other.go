package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/server/listen"
)

// other connects to the primary, for a client of s that does not begin with HTTP/2: at its socket for CRI, CRI-O also serves
// statistics over HTTP, and kubelet and cAdvisor ask for them there. criproxy does not read what passes on such a connection, so only
// clients that may make every call can have one.
func (p *Proxy) other(s *listen.Socket) (net.Conn, error) {
	rules := s.Access.Load()
	if rules == nil || len(*rules) > 0 {
		return nil, errors.New("clients of this socket may only make the calls that its access list names")
	}
	primary := p.Config().Backends[0]
	if !strings.HasPrefix(primary.Address, "/") {
		return nil, fmt.Errorf("the primary, %s, is not at a socket on this node", primary.Address)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var d net.Dialer
	return d.DialContext(ctx, "unix", primary.Address)
}

// crioPath returns a warning if kubelet takes the path of the socket for CRI-O's, but the primary does not serve HTTP. It asks
// the primary.
func crioPath(c *config.Config) string {
	if !strings.HasSuffix(c.Listen, listen.CRIOSuffix) || listen.ServesHTTP(c.Backends[0].Address) {
		return ""
	}
	return fmt.Sprintf("listen: kubelet takes %s for CRI-O's own socket, and asks there over HTTP for the figures of containers, which the primary, %s, does not serve: /stats/summary fails; choose another path",
		c.Listen, c.Backends[0].Address)
}
