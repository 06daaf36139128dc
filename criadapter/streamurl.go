package criadapter

import (
	"cmp"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
)

// defaultStreamPort is the port at which the streaming server of dockershim listened.
const defaultStreamPort = 11250

// streamBase completes URLs of exec, attach and port-forward.
//
// kubelet connects to the URL that a runtime returns. Most runtimes return one with a host,
// which passes as it is. Old ones leave out the host ("/cri/exec/TOKEN"), or name the
// wildcard address on which they listen ("//[::]:35000/exec/TOKEN"). kubelet
// 1.36 refuses a URL without a scheme:
// https://github.com/Mirantis/cri-dockerd/issues/569
//
// The zero host stands for the address that this node has when a call ends: at the start there may be none yet.
type streamBase struct {
	scheme, host string // host has the port, if the setting has one
	port         int    // with the address of the node, if host is empty
}

func parseStreamURL(s string, port int) (streamBase, error) {
	if s == "" {
		return streamBase{scheme: "http", port: cmp.Or(port, defaultStreamPort)}, nil
	}
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return streamBase{}, fmt.Errorf("stream URL %q: want http://HOST:PORT/, the address of the runtime's streaming server", s)
	}
	return streamBase{scheme: u.Scheme, host: u.Host}, nil
}

// complete is a [director.Edit].
func (base streamBase) complete(dst, value []byte) ([]byte, error) {
	u, err := url.Parse(string(value))
	if err != nil || len(value) == 0 || u.Opaque != "" { // "localhost:35000/exec" is opaque
		return append(dst, value...), nil // leave it to the client
	}
	ip := net.ParseIP(u.Hostname())
	switch {
	case u.Host == "":
		if u.Scheme, u.Host = base.scheme, base.host; u.Host == "" {
			u.Host = net.JoinHostPort(NodeAddress(), strconv.Itoa(base.port))
		}
	case ip != nil && ip.IsUnspecified():
		host := (&url.URL{Host: base.host}).Hostname()
		switch { // a server at one family's wildcard may not listen in the other
		case host != "":
		case ip.To4() != nil:
			host = nodeAddress("tcp4", "tcp6")
		default:
			host = nodeAddress("tcp6", "tcp4")
		}
		u.Host = net.JoinHostPort(host, u.Port())
	case u.Scheme != "":
		return append(dst, value...), nil
	}
	if u.Scheme == "" {
		u.Scheme = base.scheme
	}
	whole := u.String()
	if _, err := url.Parse(whole); err != nil { // "//:]:35" is no URL with a scheme either
		return append(dst, value...), nil
	}
	return append(dst, whole...), nil
}

// NodeAddress returns the address of this machine that other machines can reach, of IPv4 if it has one.
func NodeAddress() string { return nodeAddress("tcp4", "tcp6") }

// nodeAddress returns the address of this machine in the first of the networks, tcp4 and tcp6, in which other machines can
// reach it: the one of the default route, which kubelet takes for the node as well, or else the first of an interface.
// Without any it is that of the loopback.
func nodeAddress(networks ...string) string {
	all, _ := net.InterfaceAddrs() // without them, the loopback remains
	return chooseAddress(networks, routed, all)
}

func chooseAddress(networks []string, routed func(network string) net.IP, all []net.Addr) string {
	for _, network := range networks {
		if ip := routed(network); ip.IsGlobalUnicast() {
			return ip.String()
		}
	}
	for _, loopback := range []bool{false, true} {
		for _, network := range networks {
			for _, a := range all {
				n, ok := a.(*net.IPNet)
				if ok && (n.IP.To4() != nil) == (network == "tcp4") && (n.IP.IsGlobalUnicast() || loopback && n.IP.IsLoopback()) {
					return n.IP.String()
				}
			}
		}
	}
	return "127.0.0.1"
}

// routed returns the address from which this machine sends by its default route, or nil if there is no such route. It sends
// nothing: connecting a UDP socket only asks the kernel for the route. The addresses are for documentation, RFC 5737 and
// RFC 3849.
func routed(network string) net.IP {
	to := "192.0.2.1:9"
	if network == "tcp6" {
		to = "[2001:db8::1]:9"
	}
	conn, err := net.Dial(strings.Replace(network, "tcp", "udp", 1), to)
	if err != nil {
		return nil
	}
	defer conn.Close() // nothing was sent
	return conn.LocalAddr().(*net.UDPAddr).IP
}
