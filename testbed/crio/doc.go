// Package crio has no code, only tests: criproxy in front of a real CRI-O, which serves HTTP at its CRI socket, beside a
// containerd.
package crio
