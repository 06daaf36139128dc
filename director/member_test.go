package director

import (
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A stream that its backend does not have was opened again every 3 s, for ever, if the backend said so as Unknown (issue 40).
func TestAStreamThatIsNotImplementedIsRetriedByTheMinute(t *testing.T) {
	for _, lacking := range []ending{
		{err: status.Error(codes.Unimplemented, "unknown method")},
		{err: status.Error(codes.Unknown, "not implemented")},
		{err: io.EOF},
	} {
		assert.True(t, lacking.lacks(), "%v", lacking.err)
	}
	for _, ended := range []ending{{err: io.EOF, spoke: true}, {err: status.Error(codes.Unavailable, "is starting")}} {
		assert.False(t, ended.lacks(), "%v", ended.err)
	}
}
