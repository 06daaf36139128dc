package testbed

import (
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestSubnetsThatAreRoutedAreLeftAlone(t *testing.T) {
	_, near, _ := net.ParseCIDR("198.18.3.0/24")
	_, wide, _ := net.ParseCIDR("198.19.0.0/16")
	_, all, _ := net.ParseCIDR("0.0.0.0/0")
	routes := []netlink.Route{{Dst: nil}, {Dst: all}, {Dst: near}, {Dst: wide}}
	assert.False(t, routed(routes, bridgeNumber(2).subnet))
	assert.True(t, routed(routes, bridgeNumber(3).subnet))
	assert.True(t, routed(routes, bridgeNumber(300).subnet))
}

func TestBridgesHaveDifferentSubnets(t *testing.T) {
	seen := map[netip.Prefix]bool{}
	for n := range subnets {
		b := bridgeNumber(n)
		assert.False(t, seen[b.subnet])
		seen[b.subnet] = true
		assert.True(t, netip.MustParsePrefix("198.18.0.0/15").Contains(b.addr))
		assert.Less(t, len(b.name), unix.IFNAMSIZ)
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
