//go:build !linux

package transport

import "net"

// A socket is a connection that a poller of our own waits for. There is one only on Linux.
type socket struct{ net.Conn }

// ownSocket returns nc itself: Go's poller waits for it.
func ownSocket(nc net.Conn) net.Conn { return nc }
