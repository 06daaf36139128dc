package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Clean removes by force everything that instances in dir, or in folders of dir, have on this machine,
// and dir itself. It needs no running daemon, so it also removes the remains of a crashed test. It gives
// up after a minute. If something is left, Clean fails and names it, and leaves the folder for another try.
func Clean(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("testbed: cleaning: %w", err)
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	if isDir(dir) && !claimed(dir) {
		return removeClaimed(dir) // returns the reason
	}
	t := findTraces(dir) // while dir exists
	cgroups := t.cgroupNames()
	errs := []error{
		killDaemons(dir),
		t.kill(ctx),
		t.unmount(ctx),
		removeBridges(dir),
		removeCgroups(ctx, cgroups),
	}
	for _, file := range t.outside() {
		if err := os.RemoveAll(file); err != nil {
			errs = append(errs, fmt.Errorf("testbed: removing %s: %w", file, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err // the folder stays: what is left is found by it, and a mount in it may be another folder's
	}
	if err := removeClaimed(dir); err != nil {
		return err
	}
	if len(Instances()) == 0 {
		removeShared()
	}
	ctx, cancel = context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return Await(ctx, "the last traces of "+dir+" to go", func() error {
		left := Leftovers(dir)
		if len(left) == 0 {
			return nil
		}
		// A runtime that creates a container for a kubelet that has just died recreates the cgroups.
		return errors.Join(fmt.Errorf("testbed: cleaning %s left:\n  %s", dir, strings.Join(left, "\n  ")), removeCgroups(ctx, cgroups))
	})
}

// Leftovers lists what remains on this machine of the instances in dir: processes, mounts, links,
// cgroups, files outside of dir, and dir itself. After Destroy it returns nothing.
func Leftovers(dir string) []string {
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	t := findTraces(dir)
	var left []string
	for _, pid := range t.processes() {
		left = append(left, fmt.Sprintf("process %d: %s", pid, strings.Join(command(pid), " ")))
	}
	for _, m := range t.mountPoints() {
		left = append(left, "mount "+m)
	}
	bridges, ports := bridgesOf(dir)
	for _, l := range append(bridges, ports...) {
		left = append(left, "link "+l.Attrs().Name)
	}
	for _, name := range t.cgroupNames() {
		for _, folder := range cgroupFolders(name) {
			left = append(left, "cgroup "+folder)
		}
	}
	for _, file := range t.outside() {
		left = append(left, "file "+file)
	}
	if isDir(dir) {
		left = append(left, "folder "+dir)
	}
	return left
}

func removeCgroups(ctx context.Context, names []string) error {
	var errs []error
	for _, name := range names {
		errs = append(errs, removeCgroup(ctx, name))
	}
	return errors.Join(errs...)
}

// removeShared removes the empty folders that several instances share. An instance that is just
// starting needs them, so Clean calls removeShared only if there is no instance.
func removeShared() {
	for _, pattern := range []string{
		sharedRun + "/fifo/*", sharedRun + "/fifo", sharedRun + "/runc/*", sharedRun + "/runc", sharedRun + "/s", sharedRun,
		cniCache, filepath.Dir(cniCache),
	} {
		dirs, _ := filepath.Glob(pattern)
		for _, dir := range dirs {
			unix.Rmdir(dir) // os.Remove would also remove a file
		}
	}
	removeEmptyCgroup(cgroupRoot)
	removeEmptyCgroup(defaultCgroup)
}

// killDaemons kills every process that has a pid file in dir or in a folder of it.
func killDaemons(dir string) error {
	files, _ := filepath.Glob(filepath.Join(dir, "*.pid"))
	below, _ := filepath.Glob(filepath.Join(dir, "*", "*.pid"))
	var errs []error
	for _, file := range append(files, below...) {
		base := strings.TrimSuffix(file, ".pid")
		errs = append(errs, NewProcess(filepath.Base(base), base).Kill())
	}
	return errors.Join(errs...)
}

// kill kills all processes, those of paused containers too, repeatedly, until no new ones appear.
func (t traces) kill(ctx context.Context) error {
	hierarchies := hierarchies()
	for {
		left := t.processes()
		if len(left) == 0 {
			return nil
		}
		for _, pid := range left {
			for _, name := range cgroupsOf(pid) {
				for _, h := range hierarchies {
					thaw(filepath.Join(h, name))
				}
			}
			unix.Kill(pid, unix.SIGKILL)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("testbed: killing the processes of %s: %w: %v still run", t.dir, ctx.Err(), left)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// unmount removes every mount below the folder. It detaches a mount that stays busy: the processes that
// use it keep it until they end, and no other process sees it.
func (t traces) unmount(ctx context.Context) error {
	for try := 0; ; try++ {
		points := t.mountPoints()
		if len(points) == 0 {
			return nil
		}
		flags := unix.UMOUNT_NOFOLLOW
		if try > 20 {
			flags |= unix.MNT_DETACH
		}
		var failed error
		for _, point := range points {
			if err := unix.Unmount(point, flags); err != nil {
				failed = fmt.Errorf("testbed: unmounting %s: %w", point, err)
			}
		}
		if failed == nil {
			continue
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), failed)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
