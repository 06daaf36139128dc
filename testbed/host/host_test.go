package host

import (
	"context"
	"net"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestSubnetsThatAreRoutedAreLeftAlone(t *testing.T) {
	_, near, _ := net.ParseCIDR("198.18.3.0/24")
	_, wide, _ := net.ParseCIDR("198.19.0.0/16")
	_, all, _ := net.ParseCIDR("0.0.0.0/0")
	routes := []netlink.Route{{Dst: nil}, {Dst: all}, {Dst: near}, {Dst: wide}}
	assert.False(t, routed(routes, bridgeNumber(2).Subnet))
	assert.True(t, routed(routes, bridgeNumber(3).Subnet))
	assert.True(t, routed(routes, bridgeNumber(300).Subnet))
}

func TestBridgesHaveDifferentSubnets(t *testing.T) {
	seen := map[netip.Prefix]bool{}
	for n := range subnets {
		b := bridgeNumber(n)
		assert.False(t, seen[b.Subnet])
		seen[b.Subnet] = true
		assert.True(t, netip.MustParsePrefix("198.18.0.0/15").Contains(b.Addr))
		assert.Less(t, len(b.Name), unix.IFNAMSIZ)
	}
}

func TestMentionsIsNotFooledByLongerPaths(t *testing.T) {
	for text, want := range map[string]bool{
		"/tmp/ctb-1/containerd.sock":             true,
		"unix:///tmp/ctb-1/containerd.sock":      true,
		"lowerdir=/tmp/ctb-1/a:/tmp/ctb-1/b":     true,
		"/tmp/ctb-1":                             false,
		"/tmp/ctb-12/containerd.sock":            false,
		"/var/tmp/ctb-1/containerd.sock":         false,
		"/var/tmp/ctb-1/c then \"/tmp/ctb-1/c\"": true,
	} {
		assert.Equal(t, want, mentions(text, "/tmp/ctb-1"), text)
	}
}

func TestWaitingForALockEndsWithTheContext(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lock")
	unlock, err := Lock(t.Context(), func() { t.Error("it is free") }, file)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	waited := false
	_, err = Lock(ctx, func() { waited = true }, file)
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	assert.True(t, waited)
	unlock()
	unlock, err = Lock(t.Context(), nil, file)
	require.NoError(t, err)
	unlock()
}

func TestTheFirstFreeLockIsTaken(t *testing.T) {
	one, two := filepath.Join(t.TempDir(), "one"), filepath.Join(t.TempDir(), "two")
	first, err := Lock(t.Context(), nil, one, two)
	require.NoError(t, err)
	second, err := Lock(t.Context(), nil, one, two)
	require.NoError(t, err)
	first()
	third, err := Lock(t.Context(), nil, one, two)
	require.NoError(t, err)
	second()
	third()
}
