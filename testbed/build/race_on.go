//go:build race

package build

// Raced says whether this program was built with the race detector.
const Raced = true
