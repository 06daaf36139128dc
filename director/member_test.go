package director

import (
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
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
	for _, ended := range []ending{{err: io.EOF, some: true}, {err: status.Error(codes.Unavailable, "is starting")}} {
		assert.False(t, ended.lacks(), "%v", ended.err)
	}
}

// If header and end of a stream came before the client looked, it got the header only sometimes.
func TestAHeaderThatCameBeforeTheEndIsThere(t *testing.T) {
	for range 100 {
		s := newSeveral()
		s.head(metadata.Pairs("a", "b"))
		close(s.ended)
		md, err := s.Header()
		require.NoError(t, err)
		require.Equal(t, metadata.Pairs("a", "b"), md)
	}
	s := newSeveral()
	close(s.ended)
	md, err := s.Header()
	require.NoError(t, err)
	assert.Empty(t, md)
}
