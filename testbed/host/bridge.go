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

// bridgePrefix begins the name of each of our bridges; the number of its subnet follows.
const bridgePrefix = "ctb"

// subnets is the number of /24 networks in 198.18.0.0/15, the range reserved for benchmarks (RFC 2544),
// which real networks do not use.
const subnets = 512

// A Bridge is an instance's own network: its pods reach each other and the machine, and nothing else.
// It has no default route, no masquerading and no port mapping, so it needs no change of iptables or
// net.ipv4.ip_forward.
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

// ClaimBridge creates a bridge for the instance in dir. Creating it claims its subnet: the kernel allows
// a name only once, so no two instances share a subnet, even in different processes. The link's alias
// is the folder, by which Clean finds the bridge after a crash.
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

// Hash returns a number for a folder's path, which should differ for instances in different folders.
func Hash(dir string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(dir))
	return h.Sum32()
}

func setUp(link *netlink.Bridge, b Bridge, dir string) error {
	err := netlink.LinkSetAlias(link, dir) // LinkAdd cannot: the kernel ignores the alias there
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

// bridgesOf returns the bridges of the instances in dir and below, and all other links that are attached
// to these bridges.
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
