package criadapter

import (
	"fmt"
	"net"
	"net/url"
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
type streamBase struct{ *url.URL }

func parseStreamURL(s string) (streamBase, error) {
	if s == "" {
		s = fmt.Sprintf("http://%s", net.JoinHostPort(NodeAddress(), fmt.Sprint(defaultStreamPort)))
	}
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return streamBase{}, fmt.Errorf("stream URL %q: want http://HOST:PORT/, the address of the runtime's streaming server", s)
	}
	return streamBase{u}, nil
}

// complete is a [director.Edit].
func (base streamBase) complete(dst, value []byte) ([]byte, error) {
	u, err := url.Parse(string(value))
	if err != nil || len(value) == 0 || u.Opaque != "" { // "localhost:35000/exec" is opaque
		return append(dst, value...), nil // leave it to the client
	}
	wildcard := false
	if ip := net.ParseIP(u.Hostname()); ip != nil {
		wildcard = ip.IsUnspecified()
	}
	switch {
	case u.Host == "":
		u.Scheme, u.Host = base.Scheme, base.Host
	case wildcard:
		u.Host = net.JoinHostPort(base.Hostname(), u.Port())
	case u.Scheme != "":
		return append(dst, value...), nil
	}
	if u.Scheme == "" {
		u.Scheme = base.Scheme
	}
	whole := u.String()
	if _, err := url.Parse(whole); err != nil { // "//:]:35" is no URL with a scheme either
		return append(dst, value...), nil
	}
	return append(dst, whole...), nil
}

// NodeAddress returns the first IPv4 address of this machine that other machines can reach, or
// 127.0.0.1 if there is none.
func NodeAddress() string {
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			return n.IP.String()
		}
	}
	return "127.0.0.1"
}
