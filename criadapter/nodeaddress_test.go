package criadapter

import (
	"net"
	"net/url"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// On a node with only IPv6, kubelet got URLs of exec at 127.0.0.1. On others it was the first address of any interface, also
// of a bridge or a tunnel. See issue 40.
func TestTheNodesAddressIsThatOfItsDefaultRoute(t *testing.T) {
	t.Parallel()
	var all []net.Addr
	for _, s := range []string{"127.0.0.1/8", "::1/128", "172.17.0.1/16", "10.0.0.5/24", "fe80::1/64", "fd00::17/64", "fd00::10/64"} {
		ip, n, err := net.ParseCIDR(s)
		require.NoError(t, err)
		all = append(all, &net.IPNet{IP: ip, Mask: n.Mask})
	}
	for _, c := range []struct {
		networks  []string
		by4, by6  string
		all       []net.Addr
		want, why string
	}{
		{[]string{"tcp4", "tcp6"}, "10.0.0.5", "fd00::10", all, "10.0.0.5", "the default route, not the first interface"},
		{[]string{"tcp6", "tcp4"}, "10.0.0.5", "fd00::10", all, "fd00::10", "the family is kept"},
		{[]string{"tcp6", "tcp4"}, "10.0.0.5", "", all, "10.0.0.5", "a default route is better than none"},
		{[]string{"tcp4", "tcp6"}, "", "", all, "172.17.0.1", "there is no default route"},
		{[]string{"tcp6", "tcp4"}, "", "", all, "fd00::17", "link-local addresses need a zone"},
		{[]string{"tcp4", "tcp6"}, "", "", append(all[:2:2], all[4:]...), "fd00::17", "only IPv6"},
		{[]string{"tcp4", "tcp6"}, "", "", all[:2], "127.0.0.1", "only the loopback"},
		{[]string{"tcp4", "tcp6"}, "", "", all[1:2], "::1", "not even IPv4 on the loopback"},
		{[]string{"tcp4", "tcp6"}, "", "", nil, "127.0.0.1", "no interface is known"},
	} {
		routed := map[string]string{"tcp4": c.by4, "tcp6": c.by6}
		assert.Equal(t, c.want, chooseAddress(c.networks, func(network string) net.IP { return net.ParseIP(routed[network]) }, c.all), c.why)
	}
}

func TestTheDefaultStreamURLHasTheNodesAddress(t *testing.T) {
	t.Parallel()
	base, err := parseStreamURL("", 0)
	require.NoError(t, err)
	for given, port := range map[string]string{"/exec/abc": "11250", "//[::]:35000/exec/abc": "35000", "http://0.0.0.0:35000/exec/abc": "35000"} {
		got, err := base.complete(nil, []byte(given))
		require.NoError(t, err)
		u, err := url.Parse(string(got))
		require.NoError(t, err)
		assert.Equal(t, "http", u.Scheme)
		assert.Equal(t, "/exec/abc", u.Path)
		assert.Equal(t, port, u.Port())
		ip := net.ParseIP(u.Hostname())
		require.NotNil(t, ip, string(got))
		assert.False(t, ip.IsUnspecified())
	}
}
