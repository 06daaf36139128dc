package listen

import (
	"errors"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/criproxy/criproxy/internal/testing/untested"
)

// A process with a listener on vsock used to be unable to hand over.
func TestAVsockListenerIsHandedOver(t *testing.T) {
	const path = "vsock:4294967295:51423"
	l, err := listenNet(path)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		untested.Skip(t, "this kernel has no vsock: load the module vsock")
	}
	require.NoError(t, err)
	f, err := FileOf(l)
	require.NoError(t, err)
	in := &Inheritance{listeners: map[string]net.Listener{}}
	require.NoError(t, in.add(f, path))
	require.NoError(t, l.Close())
	next := in.Take(path)
	require.NotNil(t, next)
	assert.NoError(t, next.Close())
}
