// Package host asks the kernel about connections and files of this machine: which process is at the other end of a unix
// connection, whether another user can change a file, and whether two paths are one socket. What doctor checks is in command/doctor.
package host
