package doctor

import (
	"os"
	"path/filepath"
	"strconv"

	"github.com/criproxy/criproxy/internal/base/host"
)

// process is a process on the node.
type process struct {
	pid  int
	name string
	args []string
}

// readProcesses returns the processes that this user can see.
func (e *examination) readProcesses() []process {
	entries, _ := os.ReadDir(e.file("/proc"))
	var all []process
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join(e.file("/proc"), entry.Name())
		if name, args, err := host.Command(dir); err == nil { // else it has ended meanwhile
			all = append(all, process{pid, name, args})
		}
	}
	return all
}

// owners returns the processes that have the sockets with these inodes open, and whether it found all. Only root can
// see the open files of other users' processes.
func (e *examination) owners(inodes []uint32) ([]process, bool) {
	wanted := map[string]bool{} // :: link → not yet found
	for _, inode := range inodes {
		wanted["socket:["+strconv.FormatUint(uint64(inode), 10)+"]"] = true
	}
	var all []process
	for _, p := range e.processes {
		dir := filepath.Join(e.file("/proc"), strconv.Itoa(p.pid), "fd")
		entries, _ := os.ReadDir(dir)
		has := false
		for _, entry := range entries {
			if link, err := os.Readlink(filepath.Join(dir, entry.Name())); err == nil && wanted[link] {
				has = true
				delete(wanted, link)
			}
		}
		if has {
			all = append(all, p)
		}
	}
	return all, len(wanted) == 0
}

// flag returns the value of a flag on the command line of p.
func (p *process) flag(name string) string { return host.Flag(p.args, name) }
