package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strconv"

	"github.com/coreos/go-systemd/v22/activation"
	"k8s.io/klog/v2"
)

// The environment of a process that takes over from another one: the paths of the
// sockets that it gets as file descriptors 3 and up, as JSON, and the descriptor on
// which it says that it serves.
const (
	socketsVariable = "CRIPROXY_SOCKETS"
	readyVariable   = "CRIPROXY_READY_FD"
	// memoriesVariable is the descriptor of a socket from which the process reads, when it
	// has written a byte to it, what the other one remembers of the backends.
	memoriesVariable = "CRIPROXY_MEMORIES_FD"
)

// inheritance are sockets that were open before this process was: given by systemd,
// or by the process that it takes over from. Nil is a process that has none.
type inheritance struct {
	listeners map[string]net.Listener // :: path
	ready     *os.File                // of who hands over; nil if nobody does
	memories  *os.File                // of a process that hands over what it remembers; nil if none does
}

// inherit takes what this process was started with. It can be called once.
func inherit() (*inheritance, error) {
	in := &inheritance{listeners: map[string]net.Listener{}}
	paths, handedOver := os.LookupEnv(socketsVariable)
	if !handedOver {
		for _, f := range activation.Files(true) {
			if err := in.add(f, ""); err != nil {
				return nil, fmt.Errorf("a socket from systemd: %w", err)
			}
		}
		return in, nil
	}
	var all []string
	if err := json.Unmarshal([]byte(paths), &all); err != nil {
		return nil, fmt.Errorf("%s=%s: %w", socketsVariable, paths, err)
	}
	const first = 3 // after stdin, stdout and stderr
	for i, path := range all {
		if err := in.add(os.NewFile(uintptr(first+i), path), path); err != nil {
			return nil, fmt.Errorf("taking over %s: %w", path, err)
		}
	}
	fd, err := strconv.Atoi(os.Getenv(readyVariable))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", readyVariable, err)
	}
	in.ready = os.NewFile(uintptr(fd), "ready")
	if text, ok := os.LookupEnv(memoriesVariable); ok { // earlier versions wrote files only
		if fd, err = strconv.Atoi(text); err != nil {
			return nil, fmt.Errorf("%s: %w", memoriesVariable, err)
		}
		in.memories = os.NewFile(uintptr(fd), "memories")
		os.Unsetenv(memoriesVariable)
	}
	os.Unsetenv(socketsVariable)
	os.Unsetenv(readyVariable)
	return in, nil
}

func (in *inheritance) add(f *os.File, path string) error {
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
		_ = unit.Close() // from a .socket unit: the same as that from the store, or one whose file was made anew since
	}
	in.listeners[path] = l
	return nil
}

// take returns the socket at path, nil if there is none.
func (in *inheritance) take(path string) net.Listener {
	if in == nil {
		return nil
	}
	l := in.listeners[path]
	delete(in.listeners, path)
	return l
}

// closeRest closes the sockets that nobody took. systemd has to let go of them, too: while it
// keeps one, who connects there waits for an answer for good.
func (in *inheritance) closeRest() {
	for path, l := range in.listeners {
		klog.InfoS("A socket that was passed in is closed: no listener of the configuration has this path; ListenStream= of the .socket unit and listen should be the same", "socket", path)
		_ = l.Close() // nobody has connected
		unstoreSocket(path)
	}
}

// serving tells who hands over that it may stop.
func (in *inheritance) serving() {
	if in.ready == nil {
		return
	}
	if _, err := in.ready.WriteString(readyWord); err != nil {
		klog.ErrorS(err, "The process that is taken over from could not be told to stop")
	}
	_ = in.ready.Close() // what was written is written
}

const readyWord = "ready"
