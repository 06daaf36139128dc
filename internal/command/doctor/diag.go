package doctor

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// These constants are from sock_diag(7), the interface with which ss finds both ends of connections.
const (
	sockDiagByFamily = 20
	showName         = 1 // UDIAG_SHOW_NAME
	showPeer         = 4 // UDIAG_SHOW_PEER
	attributeName    = 0 // UNIX_DIAG_NAME
	attributePeer    = 2 // UNIX_DIAG_PEER
	requestLength    = 24
	messageLength    = 16
)

// Connected returns the inodes of the sockets that are connected to the socket at path. It cannot see sockets in other
// network namespaces.
func Connected(path string) (peers []uint32, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("asking the kernel for sockets: %w", err)
		}
	}()
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, err
	}
	defer unix.Close(s) // it was only read
	request := make([]byte, unix.NLMSG_HDRLEN+requestLength)
	binary.NativeEndian.PutUint32(request[0:], uint32(len(request)))
	binary.NativeEndian.PutUint16(request[4:], sockDiagByFamily)
	binary.NativeEndian.PutUint16(request[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	body := request[unix.NLMSG_HDRLEN:]
	body[0] = unix.AF_UNIX
	binary.NativeEndian.PutUint32(body[4:], ^uint32(0)) // in all states
	binary.NativeEndian.PutUint32(body[12:], showName|showPeer)
	if err := unix.Sendto(s, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	buf := make([]byte, 8*os.Getpagesize())
	for {
		n, _, err := unix.Recvfrom(s, buf, 0)
		if err != nil {
			return nil, err
		}
		messages, err := syscall.ParseNetlinkMessage(buf[:n])
		if err != nil {
			return nil, err
		}
		for _, m := range messages {
			switch {
			case m.Header.Type == unix.NLMSG_DONE:
				return peers, nil
			case m.Header.Type == unix.NLMSG_ERROR && len(m.Data) >= 4:
				return nil, unix.Errno(-int32(binary.NativeEndian.Uint32(m.Data)))
			case len(m.Data) >= messageLength:
				if name, peer := attributes(m.Data[messageLength:]); plain(name) == plain(path) && peer != 0 {
					peers = append(peers, peer)
				}
			}
		}
	}
}

// attributes returns the path of a socket and the inode of its peer.
func attributes(b []byte) (name string, peer uint32) {
	for len(b) >= 4 {
		length, kind := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])
		if length < 4 || length > len(b) {
			break
		}
		switch value := b[4:length]; {
		case kind == attributeName:
			name = strings.TrimSuffix(string(value), "\x00")
		case kind == attributePeer && len(value) >= 4:
			peer = binary.NativeEndian.Uint32(value)
		}
		b = b[min((length+3)&^3, len(b)):]
	}
	return name, peer
}

// plain returns path with /var/run, which is a link, replaced by /run.
func plain(path string) string {
	path = filepath.Clean(path)
	if rest, ok := strings.CutPrefix(path, "/var/run/"); ok {
		return "/run/" + rest
	}
	return path
}
