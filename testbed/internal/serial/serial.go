// Package serial is what a test and the guest program of a virtual machine say to each other through a serial port: a
// JSON object a line. What is no such line is skipped, because a machine can lose its power in the middle of one.
package serial

// A Command is to be run in the machine.
type Command struct {
	ID    int      `json:"id"`
	Args  []string `json:"args"`
	Stdin []byte   `json:"stdin,omitempty"`
}

// A Reply is what came of the command with that ID. One with a Boot answers none: the guest program has started.
type Reply struct {
	ID   int    `json:"id,omitempty"`
	Code int    `json:"code"` // the exit code, -1 if it did not start or was killed
	Out  []byte `json:"out,omitempty"`
	Err  []byte `json:"err,omitempty"`
	Boot string `json:"boot,omitempty"` // the kernel's boot_id
}

// An Event is a line that guest watch writes: how often it has called so far, and what is another answer than the one
// before, or an error.
type Event struct {
	Uptime     float64           `json:"uptime"` // seconds since the boot
	Calls      int               `json:"calls"`
	Error      string            `json:"error,omitempty"`
	Pods       map[string]string `json:"pods,omitempty"`       // :: id → NAME STATE ATTEMPT
	Containers map[string]string `json:"containers,omitempty"` // :: id → POD/NAME STATE ATTEMPT
}
