package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Lock locks the first of the files that no other process has locked. If there is none, it calls wait once and waits. It
// makes missing files. The kernel releases the lock when its owner dies. Lock waits for half an hour if ctx has no
// deadline: an owner may be building Kubernetes from nothing.
func Lock(ctx context.Context, wait func(), files ...string) (unlock func(), err error) {
	ctx, cancel := bounded(ctx, 30*time.Minute)
	defer cancel()
	for first := true; ; first = false {
		for _, file := range files {
			unlock, err := tryLock(file)
			if unlock != nil || err != nil {
				return unlock, err
			}
		}
		if first {
			wait()
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("another process still holds the lock of %s: %w", strings.Join(files, " and of "), ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// tryLock returns nil without an error if another process has the lock.
func tryLock(file string) (unlock func(), err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, err
	}
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case err == nil:
		return func() { f.Close() }, nil
	case errors.Is(err, unix.EWOULDBLOCK), errors.Is(err, unix.EINTR):
		return nil, f.Close()
	default:
		f.Close()
		return nil, fmt.Errorf("locking %s: %w", file, err)
	}
}
