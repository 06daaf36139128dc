package limits

import (
	"golang.org/x/sys/unix"
)

// The shares of the process's file descriptors, in eighths. The admin socket, the runtimes, plugins and files have the rest.
// That is an eighth at least: the other sockets may have twice their share while connections end.
const (
	mainShare  = 5 // connections of the main socket
	otherShare = 1 // connections of all other sockets together

	// mostConns bounds the connections of a socket other than the main one: each takes memory, too.
	mostConns = 1024

	leastConns = 4
)

// MostConns returns how many connections the main socket may have, and each of the others. Above that, idle connections
// end, and the other sockets refuse new ones.
func MostConns(others int) (main, other int) {
	var limit unix.Rlimit // Go has raised the soft one to the hard one when the process began
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		limit.Cur = 1024 // as Linux has it without configuration
	}
	return mostOf(limit.Cur, others)
}

func mostOf(files uint64, others int) (main, other int) {
	eighth := int(min(files, 1<<30) / 8)
	return max(mainShare*eighth, leastConns), min(max(otherShare*eighth/max(others, 1), leastConns), mostConns)
}
