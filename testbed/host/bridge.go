package host

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// bridgePrefix starts the name of every bridge of ours; a number follows, which is the subnet's too.
const bridgePrefix = "ctb"

// subnets is the number of /24 networks in 198.18.0.0/15, the range set aside for benchmarks (RFC 2544),
// which no machine's real network uses.
const subnets = 512

// A Bridge is an instance's own network: pods on it reach each other and the machine, and nothing else.
// There is no default route, no masquerading and no port mapping, so neither iptables nor
// net.ipv4.ip_forward is touched.
type Bridge struct {
	Name   string
	Subnet netip.Prefix
	Addr   netip.Addr // the machine's address on it
}

func bridgeNumber(n int) Bridge {
	base := [4]byte{198, 18 + byte(n/256), byte(n % 256), 0}
	gateway := base
	gateway[3] = 1
	return Bridge{
		Name:   bridgePrefix + strconv.Itoa(n),
		Subnet: netip.PrefixFrom(netip.AddrFrom4(base), 24),
		Addr:   netip.AddrFrom4(gateway),
	}
}

// ClaimBridge makes a bridge for the instance in dir. Making it is the claim on its subnet: the kernel
// lets only one succeed with a name, so that no two instances share one, also across processes. The
// folder is written into the link's alias, which is how a bridge is found again after a crash.
func ClaimBridge(dir string) (Bridge, error) {
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return Bridge{}, fmt.Errorf("testbed: listing routes: %w", err)
	}
	for try := range subnets {
		b := bridgeNumber((int(Hash(dir)%subnets) + try) % subnets)
		if routed(routes, b.Subnet) {
			continue
		}
		link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: b.Name}}
		err := netlink.LinkAdd(link)
		if errors.Is(err, unix.EEXIST) {
			continue
		}
		if err == nil {
			err = setUp(link, b, dir)
		}
		if err != nil {
			return Bridge{}, fmt.Errorf("testbed: making bridge %s: %w", b.Name, err)
		}
		return b, nil
	}
	return Bridge{}, fmt.Errorf("testbed: all %d bridges are taken (remove old ones with: testbed down -all)", subnets)
}

// Hash makes a number of a folder's path: instances in different folders should differ in it.
func Hash(dir string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(dir))
	return h.Sum32()
}

func setUp(link *netlink.Bridge, b Bridge, dir string) error {
	err := netlink.LinkSetAlias(link, dir) // not with LinkAdd: the kernel ignores it there
	if err == nil {
		err = netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: b.Addr.AsSlice(), Mask: net.CIDRMask(b.Subnet.Bits(), 32)}})
	}
	if err == nil {
		err = netlink.LinkSetUp(link)
	}
	if err != nil {
		netlink.LinkDel(link)
	}
	return err
}

func routed(routes []netlink.Route, subnet netip.Prefix) bool {
	for _, r := range routes {
		if r.Dst == nil {
			continue
		}
		ones, _ := r.Dst.Mask.Size()
		if addr, ok := netip.AddrFromSlice(r.Dst.IP.To4()); ok && ones > 0 && netip.PrefixFrom(addr, ones).Overlaps(subnet) {
			return true
		}
	}
	return false
}

// bridgesOf returns the bridges of the instances in dir and below, and every other link that is plugged
// into them.
func bridgesOf(dir string) (bridges, ports []netlink.Link) {
	links, _ := netlink.LinkList()
	for _, l := range links {
		if strings.HasPrefix(l.Attrs().Name, bridgePrefix) && l.Attrs().Alias != "" && inside(dir, l.Attrs().Alias) {
			bridges = append(bridges, l)
		}
	}
	for _, l := range links {
		for _, b := range bridges {
			if l.Attrs().MasterIndex == b.Attrs().Index {
				ports = append(ports, l)
			}
		}
	}
	return bridges, ports
}

func removeBridges(dir string) error {
	bridges, ports := bridgesOf(dir)
	var errs []error
	for _, l := range append(ports, bridges...) {
		err := netlink.LinkDel(l)
		if _, gone := err.(netlink.LinkNotFoundError); err != nil && !gone && !errors.Is(err, unix.ENODEV) && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("testbed: deleting link %s: %w", l.Attrs().Name, err))
		}
	}
	return errors.Join(errs...)
}
