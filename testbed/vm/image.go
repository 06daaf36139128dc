package vm

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/host"
)

// packages are the packages of the image in addition to Debian's essential ones.
var packages = []string{
	"systemd", "systemd-sysv", "dbus", "udev", "kmod", "apparmor", "iproute2", "procps",
	"linux-image-cloud-amd64", "initramfs-tools",
	"containerd", "runc",
}

// files are laid over the image before its packages are configured.
//
//go:embed all:image
var files embed.FS

// An Image holds the files that a machine boots.
type Image struct {
	Disk, Kernel, Initrd string // files; the disk is to be copied
}

// GetImage returns the image, and makes it first if it is not in the testbed's cache; this needs root, mmdebstrap and
// Debian's mirror. A change of debootstrap or of the folder image causes a new image.
func GetImage(ctx context.Context, progress io.Writer) (Image, error) {
	cache, err := build.CacheDir()
	if err != nil {
		return Image{}, err
	}
	recipe, err := recipe()
	if err != nil {
		return Image{}, err
	}
	dir := filepath.Join(cache, "vm-bookworm-"+recipe)
	image := Image{Disk: filepath.Join(dir, "disk"), Kernel: filepath.Join(dir, "vmlinuz"), Initrd: filepath.Join(dir, "initrd")}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return image, fmt.Errorf("testbed: making the cache folder: %w", err)
	}
	unlock, err := host.Lock(ctx, func() {
		fmt.Fprintln(progress, "testbed: waiting for another process to make the image of the virtual machine")
	}, filepath.Join(cache, "vm.lock"))
	if err != nil {
		return image, fmt.Errorf("testbed: waiting for the image of the virtual machine: %w", err)
	}
	defer unlock()
	if _, err := os.Stat(dir); err == nil {
		return image, nil
	}
	started := time.Now()
	fmt.Fprintln(progress, "testbed: making the image of the virtual machine ...")
	half, err := os.MkdirTemp(cache, "vm-half-")
	if err != nil {
		return image, fmt.Errorf("testbed: making the image of the virtual machine: %w", err)
	}
	defer os.RemoveAll(half)
	if err := makeImage(ctx, half); err != nil {
		return image, fmt.Errorf("testbed: making the image of the virtual machine: %w", err)
	}
	if err := os.Rename(half, dir); err != nil {
		return image, fmt.Errorf("testbed: storing the image of the virtual machine: %w", err)
	}
	fmt.Fprintf(progress, "testbed: making the image of the virtual machine ... %.0fs\n", time.Since(started).Seconds())
	return image, nil
}

// debootstrap is the command that fills a folder with the image's files. Each hook is run with the folder as its argument.
func debootstrap(overlay, root string) []string {
	args := []string{"--mode=root", "--variant=minbase", "--include=" + strings.Join(packages, ",")}
	args = append(args, "--essential-hook=cp -r "+overlay+`/. "$1"`)
	for _, line := range []string{
		`chroot "$1" passwd -d root`,
		`chroot "$1" systemctl enable guest.service`,
		`chroot "$1" systemctl mask apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer fstrim.timer getty@tty1.service`,
		`mkdir -p "$1/payload"`,
	} {
		args = append(args, "--customize-hook="+line)
	}
	return append(args, "bookworm", root)
}

// recipe returns the name of an image: equal names mean equal images, except for newer versions of Debian's packages.
func recipe() (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, debootstrap("overlay", "root"), diskSize)
	err := fs.WalkDir(files, "image", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := files.ReadFile(path)
		fmt.Fprintf(h, "%s %d\n%s", path, len(data), data)
		return err
	})
	return hex.EncodeToString(h.Sum(nil))[:10], err
}

func makeImage(ctx context.Context, dir string) error {
	overlay, root := filepath.Join(dir, "overlay"), filepath.Join(dir, "root")
	below, err := fs.Sub(files, "image")
	if err == nil {
		err = os.CopyFS(overlay, below)
	}
	if err == nil {
		// In its own namespace, so that its mounts cannot disturb other processes, even if it fails.
		err = command(ctx, "unshare", append([]string{"--mount", "--propagation", "private", "mmdebstrap"}, debootstrap(overlay, root)...)...)
	}
	if err == nil {
		err = errors.Join(keep(root, "vmlinuz", dir), keep(root, "initrd.img", filepath.Join(dir)))
	}
	if err == nil {
		err = os.Rename(filepath.Join(dir, "initrd.img"), filepath.Join(dir, "initrd"))
	}
	if err == nil {
		err = makeDisk(ctx, filepath.Join(dir, "disk"), root, diskSize)
	}
	return errors.Join(err, os.RemoveAll(root), os.RemoveAll(overlay))
}

// keep copies the target of a link in the root folder into dir.
func keep(root, name, dir string) error {
	target, err := os.Readlink(filepath.Join(root, name))
	if err != nil {
		return err
	}
	data, err := os.ReadFile(filepath.Join(root, target))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name), data, 0o644)
}

// diskSize is the capacity of the machine's disk; the file is sparse.
const diskSize = "6G"

// makeDisk makes a file with an ext4 file system that holds a folder's content.
func makeDisk(ctx context.Context, file, folder, size string) error {
	if err := command(ctx, "truncate", "-s", size, file); err != nil {
		return err
	}
	return command(ctx, "mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1,lazy_journal_init=1", "-d", folder, file)
}

// command runs a program, for 20 minutes if ctx has no deadline: an image takes long to download. If it fails, the error holds the end of its output.
func command(ctx context.Context, name string, args ...string) error {
	cmd := host.CommandWithin(ctx, 20*time.Minute, name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, host.LastLines(string(out), 30))
	}
	return nil
}
