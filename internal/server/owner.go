package server

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/config"
)

// ownerFile is the file in the state folder that its owner locks. Its lines are the owner, the packages of its API, and the
// version; later ones are ignored. It stays when the owner ends: then only the API and the version count, because all that is
// in the folder belongs to them.
const ownerFile = "owner.lock"

// ownerVersion rises when no older criproxy may use the folder.
const ownerVersion = 1

// An owner is the lock by which one process has a state folder to itself. A process that hands over unlocks the folder
// before its successor gets the backends, so a successor takes the lock as any process does. The kernel unlocks the folder
// of a process that ends. The nil owner has no folder.
type owner struct{ file *os.File }

// errOwned is the error of own for a folder that another process has.
var errOwned = errors.New("it belongs to another criproxy")

// own locks a folder for the process that serves the socket listen, with an API whose versions are packages. It returns nil
// without an error where the folder does not exist, or cannot have a lock: whether it can be written to is for others to say.
//
// The lock decides, and the text in the file only says whose it is: a process that was killed leaves its text, but no lock.
func own(dir, listen string, api ...string) (*owner, error) {
	f, err := os.OpenFile(filepath.Join(dir, ownerFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, nil
	}
	text := make([]byte, 4096)
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	n, _ := f.Read(text) // a new file is empty, and one on a full disk may lack the API and the version
	lines := append(strings.Split(string(text[:n]), "\n"), "", "")
	who, was, version := lines[0], strings.Fields(lines[1]), 0
	_, _ = fmt.Sscanf(lines[2], "version %d", &version)
	other := len(was) > 0 && !slices.ContainsFunc(was, func(one string) bool { return slices.Contains(api, one) })
	switch {
	case err == nil && version > ownerVersion:
		err = fmt.Errorf("only a newer criproxy can use it, because its %s has version %d", ownerFile, version)
	case err == nil && other:
		err = fmt.Errorf("the folder belongs to the API %s, of another criproxy", was[0])
	case err == nil:
		now := fmt.Appendf(nil, "process %d, which serves %s\n%s\nversion %d\n", os.Getpid(), listen, strings.Join(api, " "), ownerVersion)
		if _, err := f.WriteAt(now, 0); err == nil { // on a full disk, its API and version stay those of the folder
			_ = f.Truncate(int64(len(now)))
		}
		return &owner{f}, nil
	case !errors.Is(err, unix.EWOULDBLOCK):
		err = nil
	case who == "":
		err = errOwned
	default:
		err = fmt.Errorf("%w, %s", errOwned, who)
	}
	_ = f.Close() // nothing was written
	return nil, err
}

// ownerPatience is how long a process that starts waits for another one to leave its state folder. A process that was killed
// keeps its lock until the last of its threads has ended, which is after it looks dead.
const ownerPatience = 3 * time.Second

// await is claim that waits for the owner to end. A process without the folder would know no pods of a runtime that is gone.
func (p *Proxy) await(c *config.Config) (o *owner, err error) {
	for end := time.Now().Add(ownerPatience); ; time.Sleep(20 * time.Millisecond) {
		if o, err = p.claim(c); !errors.Is(err, errOwned) || time.Now().After(end) {
			return o, err
		}
	}
}

// has reports whether o owns the folder that is now at dir. The lock is on the file, so a folder that was removed and made again
// is another one.
func (o *owner) has(dir string) bool {
	if o == nil {
		return false
	}
	mine, err := o.file.Stat()
	var there fs.FileInfo
	if err == nil {
		there, err = os.Stat(filepath.Join(dir, ownerFile))
	}
	return err == nil && os.SameFile(mine, there)
}

// release unlocks the folder.
func (o *owner) release() {
	if o != nil {
		_ = o.file.Close() // nothing in it matters
	}
}

// claim returns the owner of the state folder of a configuration: that of now, or a new one. It fails if another process
// owns the folder: the next process would believe what either of them wrote there, and kubelet would kill pods. It also
// fails if the folder is of another API: status would show runtimes and errors of servers that this process does not have;
// and if it is of a newer criproxy, as [ownerVersion] says.
func (p *Proxy) claim(c *config.Config) (*owner, error) {
	if c.StateDir == "" || p.shows {
		return nil, nil
	}
	if p.owner.has(c.StateDir) {
		return p.owner, nil
	}
	var api []string
	for _, v := range p.profile.Versions {
		api = append(api, v.Package)
	}
	o, err := own(c.StateDir, c.Listen, api...)
	if err != nil {
		return nil, fmt.Errorf("using the state folder %s: %w; choose another folder with -state-dir, or none", c.StateDir, err)
	}
	return o, nil
}

// goWithout makes a configuration keep nothing, because of err. The proxy serves all the same: a node without its files is better
// than no node.
func goWithout(c *config.Config, err error) {
	klog.ErrorS(err, "Without a state folder, criproxy forgets the runtimes when it restarts")
	c.StateDir = ""
}

// unlock leaves the state folder to the process that takes over, until relock.
func (p *Proxy) unlock() {
	p.owner.release()
	p.owner = nil
}

// relock takes the state folder back after a handover that failed. The process that did not take over may just be ending.
func (p *Proxy) relock() {
	var err error
	if p.owner, err = p.await(p.Config()); err != nil {
		klog.ErrorS(err, "Another process took the state folder during the handover, and both write to it now; stop the other one")
	}
}
