package doctor

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
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
		comm, err := os.ReadFile(filepath.Join(dir, "comm"))
		if err != nil {
			continue // it has ended meanwhile
		}
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		all = append(all, process{pid, strings.TrimSpace(string(comm)), strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")})
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

// flag returns the value of a flag on the command line of p. If the flag is repeated, the last one counts.
func (p *process) flag(name string) string {
	value := ""
	for i, arg := range p.args {
		key, v, assigned := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		switch {
		case key != name || !strings.HasPrefix(arg, "-"):
		case assigned:
			value = v
		case i+1 < len(p.args):
			value = p.args[i+1]
		}
	}
	return value
}
