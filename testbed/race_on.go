//go:build race

package testbed

// raced says whether this program was built with the race detector. Then criproxy is, too.
const raced = true
