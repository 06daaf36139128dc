package daemon

import (
	"encoding/gob"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"k8s.io/klog/v2"
)

// memoriesTime bounds how long handing over what is remembered may take, once it is asked
// for.
const memoriesTime = 10 * time.Second

// memoriesFor returns the other end of a socket from which a new process reads what this
// one remembers, and what serves this end. That is read as late as can be: until then
// clients are told news by this process.
func (p *Proxy) memoriesFor() (theirs *os.File, serve func() (stop func()), err error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("making a socket for what is remembered: %w", err)
	}
	theirs, file := os.NewFile(uintptr(fds[1]), "memories"), os.NewFile(uintptr(fds[0]), "memories")
	ours, err := net.FileConn(file)
	_ = file.Close() // ours has its own descriptor
	if err != nil {
		_ = theirs.Close() // nobody uses it
		return nil, nil, fmt.Errorf("making a socket for what is remembered: %w", err)
	}
	return theirs, func() func() {
		done := make(chan struct{})
		go func() {
			defer close(done)
			if _, err := ours.Read(make([]byte, 1)); err != nil {
				return // a program of an earlier version, or one that has ended
			}
			all, err := p.memories.encode()
			if err == nil {
				_ = ours.SetDeadline(time.Now().Add(memoriesTime))
				err = gob.NewEncoder(ours).Encode(all)
			}
			if err != nil {
				klog.ErrorS(err, "The new process does not get what is remembered of the backends")
			}
			_ = ours.Close() // all is written
		}()
		return func() {
			_ = ours.Close() // which ends the goroutine
			<-done
		}
	}, nil
}

// ReceiveMemories reads from a socket what the process that hands over remembers: name of a
// backend → its encoded memory. It returns nil if from is nil: there is no such process.
func ReceiveMemories(from *os.File) map[string][]byte {
	if from == nil {
		return nil
	}
	defer from.Close() // all has been read
	var all map[string][]byte
	c, err := net.FileConn(from)
	if err == nil {
		defer c.Close() // all has been read
		_ = c.SetDeadline(time.Now().Add(memoriesTime))
		if _, err = c.Write([]byte{1}); err == nil {
			err = gob.NewDecoder(c).Decode(&all)
		}
	}
	if err != nil {
		klog.ErrorS(err, "What the process before this one remembers could not be taken over; its files are used")
		return nil
	}
	return all
}
