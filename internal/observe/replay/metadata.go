package replay

import (
	"strings"

	"google.golang.org/grpc/metadata"

	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/transport"
)

// pairs returns metadata without what gRPC adds itself, and without the proxies that the recorded call came through: the
// call made again has not come through them.
func pairs(md metadata.MD) metadata.MD {
	clean := metadata.MD{}
	for key, values := range md {
		switch {
		case capture.OfConnection(key), key == transport.ViaField:
		case strings.HasPrefix(key, "grpc-") && key != "grpc-trace-bin":
		default:
			clean[key] = values
		}
	}
	return clean
}
