package replay

import (
	"strings"

	"google.golang.org/grpc/metadata"
)

// pairs returns metadata without what gRPC adds itself.
func pairs(md metadata.MD) metadata.MD {
	clean := metadata.MD{}
	for key, values := range md {
		switch {
		case key == "content-type", key == "user-agent", key == "te", strings.HasPrefix(key, ":"):
		case strings.HasPrefix(key, "grpc-") && key != "grpc-trace-bin":
		default:
			clean[key] = values
		}
	}
	return clean
}
