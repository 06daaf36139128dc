package daemon

import (
	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/internal/access"
)

// interceptors returns what stands around the handler of every call, the outermost first. A test
// fails in another order: an interceptor that refuses calls stands outside those that count them.
// The last two do not depend on each other.
func (p *Proxy) interceptors() []grpc.StreamServerInterceptor {
	return []grpc.StreamServerInterceptor{
		access.InterceptStream, // refuses what the access list of the socket does not allow
		p.memory.Intercept,     // refuses more calls than the socket may have, and counts what replies take
		p.epochs.intercept,     // counts the calls under way, for reloads and handovers
		p.filter.Intercept,     // takes secrets out of replies to clients that may only read
	}
}
