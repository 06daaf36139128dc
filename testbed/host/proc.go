package host

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A stat holds the fields of /proc/PID/stat that we need.
type stat struct {
	state   byte   // R, S, D, T, Z, ...
	parent  int    // 0 for the first process
	threads string // how many there are
	start   string // in clock ticks since boot: tells two owners of one pid apart
}

func readStat(pid int) (stat, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	// The second field is the command in parentheses and may hold anything, spaces and ) included.
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	if len(fields) < 20 {
		return stat{}, fmt.Errorf("/proc/%d/stat: cut short", pid)
	}
	parent, err := strconv.Atoi(fields[1])
	return stat{state: fields[0][0], parent: parent, threads: fields[17], start: fields[19]}, err
}

// StartTime returns when a process began, as the kernel puts it: it tells two owners of one pid apart. It is empty if
// there is no such process or it is a zombie.
func StartTime(pid int) string {
	s, err := readStat(pid)
	if err != nil || s.dead() {
		return ""
	}
	return s.start
}

// dead reports whether a process has ended. Its first thread may be a zombie before the others have ended, and closed its
// sockets.
func (s stat) dead() bool {
	return s.state == 'X' || s.state == 'Z' && (s.threads == "0" || s.threads == "1")
}

// OpenFiles returns how many files a process has open; 0 if there is none.
func OpenFiles(pid int) int {
	all, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	return len(all)
}

// pids lists all processes but zombies, which are dead and only wait for process 1 to notice.
func pids() []int {
	entries, _ := os.ReadDir("/proc")
	var all []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if s, err := readStat(pid); err == nil && !s.dead() {
			all = append(all, pid)
		}
	}
	return all
}

// command returns the arguments of a process; none for a kernel thread.
func command(pid int) []string {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return strings.Split(strings.TrimRight(string(data), "\x00"), "\x00")
}

// program returns the base name of the executable of a process.
func program(pid int) string {
	exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return strings.TrimSuffix(filepath.Base(exe), " (deleted)")
}

// A mount is one line of a mountinfo file.
type mount struct {
	point  string // where it is mounted
	fstype string
	source string
	opts   string // the file system's own options, such as overlay's lowerdir
}

// mounts lists what is mounted in the mount namespace of a process, "self" or a pid, oldest first.
func mounts(process string) []mount {
	data, _ := os.ReadFile("/proc/" + process + "/mountinfo")
	var all []mount
	for line := range strings.Lines(string(data)) {
		before, after, ok := strings.Cut(strings.TrimSpace(line), " - ")
		place, kind := strings.Fields(before), strings.Fields(after)
		if !ok || len(place) < 5 || len(kind) < 3 {
			continue
		}
		all = append(all, mount{point: unescape(place[4]), fstype: kind[0], source: kind[1], opts: kind[2]})
	}
	return all
}

// unescape undoes what the kernel does to blanks in mountinfo.
func unescape(path string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(path)
}

// mentions reports whether text, an argument or the content of a file, names something below dir. It is
// not fooled by a longer path that ends in dir.
func mentions(text, dir string) bool {
	for {
		before, after, found := strings.Cut(text, dir+"/")
		if !found {
			return false
		}
		last, _ := utf8.DecodeLastRuneInString(before)
		if before == "" || !unicode.IsLetter(last) && !unicode.IsDigit(last) && !strings.ContainsRune("._-", last) {
			return true
		}
		text = after
	}
}

// inside reports whether path is dir or below it.
func inside(dir, path string) bool {
	return path == dir || strings.HasPrefix(path, dir+"/")
}
