package listen

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strconv"

	"github.com/coreos/go-systemd/v22/activation"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/base/host"
)

// The environment of a process that takes over from another one. Any version of criproxy may be the other one, so these stay:
// names are promises, and what is missing was not known then.
const (
	// SocketsVariable has the paths of the sockets that the process gets as file descriptors 3
	// and up, as JSON.
	SocketsVariable = "CRIPROXY_SOCKETS"
	// ReadyVariable is the descriptor on which the process says that it serves.
	ReadyVariable = "CRIPROXY_READY_FD"
	// BackendsVariable is the descriptor of a socket. The process writes a byte to it, and then
	// reads from it the backends of the other process.
	BackendsVariable = "CRIPROXY_MEMORIES_FD"
	// foreignVariable is set if the files of the sockets belong to systemd, which keeps them.
	foreignVariable = "CRIPROXY_FOREIGN_SOCKETS"
)

// Inheritance holds the sockets that were open before this process started. They come from systemd,
// or from a process that hands over. A nil Inheritance has none. Whoever takes a socket owns it; CloseRest closes the others. Only
// the goroutine that starts the process uses it.
type Inheritance struct {
	listeners map[string]net.Listener // :: path
	ready     *os.File                // to the process that hands over; nil if there is none
	over      []*net.UnixListener     // the sockets that were handed over
	Backends  *os.File                // to a process that hands over its backends; nil if there is none
}

// Inherit returns the sockets with which this process was started. It must be called only once: it takes the descriptors, and
// removes the variables, so that no program that this process starts takes them, too.
func Inherit() (*Inheritance, error) {
	in := &Inheritance{listeners: map[string]net.Listener{}}
	paths, handedOver := os.LookupEnv(SocketsVariable)
	if !handedOver {
		for _, f := range activation.Files(true) {
			if err := in.add(f, ""); err != nil {
				return nil, fmt.Errorf("a socket from systemd: %w", err)
			}
			os.Setenv(foreignVariable, "1") // for the process that takes over from this one
		}
		return in, nil
	}
	var all []string
	if err := json.Unmarshal([]byte(paths), &all); err != nil {
		return nil, fmt.Errorf("%s=%s: %w", SocketsVariable, paths, err)
	}
	const first = 3 // after stdin, stdout and stderr
	for i, path := range all {
		if err := in.add(os.NewFile(uintptr(first+i), path), path); err != nil {
			return nil, fmt.Errorf("taking over %s: %w", path, err)
		}
		if l, ok := in.listeners[path].(*net.UnixListener); ok {
			in.over = append(in.over, l)
		}
	}
	fd, err := strconv.Atoi(os.Getenv(ReadyVariable))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ReadyVariable, err)
	}
	in.ready = os.NewFile(uintptr(fd), "ready")
	if text, ok := os.LookupEnv(BackendsVariable); ok { // without it, the caches come from their files
		if fd, err = strconv.Atoi(text); err != nil {
			return nil, fmt.Errorf("%s: %w", BackendsVariable, err)
		}
		in.Backends = os.NewFile(uintptr(fd), "backends")
		os.Unsetenv(BackendsVariable)
	}
	os.Unsetenv(SocketsVariable)
	os.Unsetenv(ReadyVariable)
	return in, nil
}

// add takes a socket, which f is, under its path or, if that is empty, its address. Of two for one path the later one counts.
func (in *Inheritance) add(f *os.File, path string) error {
	defer f.Close() // the listener has its own descriptor
	l, err := net.FileListener(f)
	if err != nil {
		var no error
		if l, no = vsockListener(f); no != nil {
			return err
		}
	}
	if path == "" {
		path = l.Addr().String()
	}
	if unit := in.listeners[path]; unit != nil {
		_ = unit.Close() // from the .socket unit: the same as the one from the store, or its file was replaced since
	}
	in.listeners[path] = l
	return nil
}

// own takes over the file of a socket that a process has handed over. From now on the kernel names
// this process as the one that serves the socket, and closing the socket removes the file. If the
// other process goes on after all, it keeps the file.
func own(l *net.UnixListener) {
	l.SetUnlinkOnClose(os.Getenv(foreignVariable) == "" && !Supervised()) // systemd keeps the files of sockets in its store, too
	raw, err := l.SyscallConn()
	if err != nil {
		return // the socket is closed
	}
	const asManyAsAllowed = 1 << 16
	_ = raw.Control(func(fd uintptr) {
		// The kernel notes the process that has called listen last: SO_PEERCRED, unix(7).
		if err := unix.Listen(int(fd), asManyAsAllowed); err != nil {
			klog.ErrorS(err, "Clients that ask the kernel which process serves the socket get the previous one", "socket", l.Addr())
		}
	})
}

// Take returns the listener at path, or nil if there is none. systemd and the process before may spell the path in another
// way, as /var/run for /run.
func (in *Inheritance) Take(path string) net.Listener {
	if in == nil {
		return nil
	}
	for spelled := range in.listeners {
		if in.listeners[path] == nil && host.SameSocket(spelled, path) {
			path = spelled
		}
	}
	l := in.listeners[path]
	delete(in.listeners, path)
	return l
}

// CloseRest closes the sockets that were not taken, and has systemd forget them: if systemd kept
// one, a client that connects to it would wait for ever.
func (in *Inheritance) CloseRest() {
	if in == nil {
		return
	}
	for path, l := range in.listeners {
		klog.InfoS("Closed a socket that was passed in: no listener in the configuration has this path; give ListenStream= in the .socket unit and listen the same path", "socket", path)
		_ = l.Close() // no client has connected
		RemoveSocket(path)
	}
}

// Serving says to the process that hands over that this one serves. From then on there is no way back.
func (in *Inheritance) Serving() {
	if in.ready == nil {
		return
	}
	for _, l := range in.over {
		own(l)
	}
	if _, err := in.ready.WriteString(ReadyWord); err != nil {
		klog.ErrorS(err, "Could not notify the process that hands over that this one serves")
	}
	_ = in.ready.Close() // the word has been written
}

// ReadyWord is the text with which a process says that it serves.
const ReadyWord = "ready"
