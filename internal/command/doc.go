// Package command is the wing of the commands, each with its flags and its output; of the node that some of them examine
// or change; and of the runtime in memory that the demo runs.
//
// Comes in: imports from cmd/criproxy alone.
// Goes out: imports of all wings but testing.
package command
