// Package host asks the kernel about this machine: which process is at the other end of a unix
// connection, and whether another user can change a file.
package host
