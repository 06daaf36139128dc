package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// InMountNamespace calls f on a thread with its own mount namespace, a copy of ours. Processes that f
// starts run in that namespace, which ends with the last of them.
func InMountNamespace(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// /proc/self shows the namespace of the first thread, which must not change. This goroutine holds that
			// thread while another one does the work.
			defer runtime.UnlockOSThread()
			done <- InMountNamespace(f)
			return
		}
		// Never unlocked: no other goroutine may run in this namespace. The thread ends with the goroutine.
		err := unix.Unshare(unix.CLONE_NEWNS)
		if err != nil {
			err = fmt.Errorf("testbed: entering a mount namespace: %w", err)
		} else {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// SecludeMounts stops mounts in this thread's namespace from appearing in other namespaces, except below shared. It also
// drops the mounts of containers, which the namespace would keep busy.
func SecludeMounts(shared string) error {
	for _, m := range mounts("thread-self") {
		if inside(shared, m.point) {
			continue
		}
		if strings.Contains(m.point, "/io.containerd.") || m.fstype == "nsfs" {
			unix.Unmount(m.point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) // fails only if it is gone
			continue
		}
		// A slave follows unmounts outside. EINVAL means that the mount is hidden below another one.
		err := unix.Mount("", m.point, "", unix.MS_SLAVE, "")
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("testbed: secluding %s: %w", m.point, err)
		}
	}
	return nil
}

// Cover makes path an empty folder in this thread's namespace: files written to path go to the given folder
// instead. If path does not exist, Cover covers the nearest folder above it and makes nothing.
func Cover(path, folder string) error {
	below := ""
	for !isDir(path) {
		path, below = filepath.Dir(path), filepath.Join(filepath.Base(path), below)
	}
	if inside(path, folder) {
		return fmt.Errorf("testbed: covering %s: %s lies in it (name another folder)", path, folder)
	}
	if err := os.MkdirAll(filepath.Join(folder, below), 0o755); err != nil {
		return fmt.Errorf("testbed: covering %s: %w", path, err)
	}
	return Bind(folder, path)
}

// Bind makes target, a file or a folder, show source instead.
func Bind(source, target string) error {
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("testbed: mounting %s on %s: %w", source, target, err)
	}
	return nil
}

// ShareMount makes a folder a shared mount, so that mounts below it in one namespace appear in all.
func ShareMount(dir string) error {
	if err := Bind(dir, dir); err != nil {
		return err
	}
	// Private first, so that it does not join the peer group of the mount above.
	for _, how := range []uintptr{unix.MS_PRIVATE, unix.MS_SHARED} {
		if err := unix.Mount("", dir, "", how, ""); err != nil {
			return fmt.Errorf("testbed: sharing the mount %s: %w", dir, err)
		}
	}
	return nil
}
