package listen

import (
	"net"
	"os"
	"strings"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// Supervised reports whether systemd, or another supervisor with its protocol, wants
// notifications: sd_notify(3).
func Supervised() bool { return os.Getenv("NOTIFY_SOCKET") != "" }

// Notify sends lines to systemd, if it wants notifications.
func Notify(lines ...string) {
	if _, err := daemon.SdNotify(false, strings.Join(lines, "\n")); err != nil {
		klog.ErrorS(err, "Could not notify systemd", "message", lines[0])
	}
}

// NotifyReady notifies systemd that criproxy serves. systemctl status shows the text.
func NotifyReady(status string) { Notify(daemon.SdNotifyReady, "STATUS="+status) }

// NotifyReloading notifies systemd that a reload has begun; NotifyReady ends it.
func NotifyReloading() {
	Notify(daemon.SdNotifyReloading, daemon.SdNotifyMonotonicUsec())
}

// StoreSocket has systemd keep a listening socket while criproxy restarts: clients that connect
// during that time wait, and the file stays the same. The unit needs FileDescriptorStoreMax=.
func StoreSocket(l net.Listener, path string) {
	if !Supervised() {
		return
	}
	if err := sendSocket(l, path); err != nil {
		klog.ErrorS(err, "systemd could not store the socket for a restart", "socket", path)
	}
}

// sendSocket sends a descriptor of a unix socket to systemd, and keeps the file when this process closes the socket. Another kind
// of socket stays with this process.
func sendSocket(l net.Listener, path string) error {
	unixListener, ok := Raw(l).(*net.UnixListener)
	if !ok {
		return nil
	}
	unixListener.SetUnlinkOnClose(false)
	raw, err := unixListener.SyscallConn()
	if err != nil {
		return err
	}
	// Package net cannot send descriptors on a connected socket of this kind.
	to, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(to) // the message has been sent
	message := []byte("FDSTORE=1\nFDNAME=" + storeName(path))
	address := &unix.SockaddrUnix{Name: os.Getenv("NOTIFY_SOCKET")} // both spell an abstract socket with @
	var sendErr error
	err = raw.Control(func(fd uintptr) {
		sendErr = unix.Sendmsg(to, message, unix.UnixRights(int(fd)), address, 0)
	})
	if err != nil {
		return err
	}
	return sendErr
}

// RemoveSocket has systemd forget a socket. Otherwise the next start would get it, and clients would wait in it for ever.
func RemoveSocket(path string) { Notify("FDSTOREREMOVE=1", "FDNAME="+storeName(path)) }

// storeName is the name of a socket in systemd's store, which allows no colon.
func storeName(path string) string {
	return strings.ReplaceAll(strings.TrimPrefix(path, "/"), ":", "_")
}
