// Package testing has what only tests and developers use: APIs, machines and faults for tests, a model of
// kubelet on a simulated clock, code that is broken on purpose, and the fence, which holds the plan of this house. The
// runtime in memory, with its faults, is internal/fakecri, because the demo runs it, too.
package testing
