// Package testing is the wing of what only tests and developers use: APIs, machines and faults for tests, a model of
// kubelet on a simulated clock, code that is broken on purpose, and the fence, which holds the plan of this house. The
// runtime in memory, with its faults, is command/fakecri, because the demo runs it, too.
//
// Comes in: imports from tests.
// Goes out: imports of base, of command's runtime in memory, and of codec and director.
package testing
