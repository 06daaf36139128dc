package daemon

import (
	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/internal/proxy/access"
)

// interceptors returns the interceptors of every call, the outermost first. A test holds the order:
// an interceptor that refuses calls must come before those that count them. The order of the last
// two does not matter.
func (p *Proxy) interceptors() []grpc.StreamServerInterceptor {
	return []grpc.StreamServerInterceptor{
		access.InterceptStream, // refuses calls that the access list of the socket does not allow
		p.memory.Intercept,     // limits the calls of the socket, and counts the memory of replies
		p.epochs.intercept,     // counts the calls under way, for reloads and handovers
		p.filter.Intercept,     // removes secrets from replies to clients that may only read
	}
}
