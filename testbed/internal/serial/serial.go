// Package serial is the protocol of a test and the guest program of a virtual machine on a serial port: one JSON object
// a line. Readers skip other lines, because a machine can lose its power in the middle of a line.
package serial

// A Command is a command to run in the machine.
type Command struct {
	ID    int      `json:"id"`
	Args  []string `json:"args"`
	Stdin []byte   `json:"stdin,omitempty"`
}

// A Reply is the result of the command with that ID. A Reply with a Boot answers no command: it says that the guest
// program has started.
type Reply struct {
	ID   int    `json:"id,omitempty"`
	Code int    `json:"code"` // the exit code, -1 if it did not start or was killed
	Out  []byte `json:"out,omitempty"`
	Err  []byte `json:"err,omitempty"`
	Boot string `json:"boot,omitempty"` // the kernel's boot_id
}

// An Event is a line that guest watch writes: the number of calls so far, and a changed answer or an error.
type Event struct {
	Uptime     float64           `json:"uptime"` // seconds since the boot
	Calls      int               `json:"calls"`
	Error      string            `json:"error,omitempty"`
	Pods       map[string]string `json:"pods,omitempty"`       // :: id → NAME STATE ATTEMPT
	Containers map[string]string `json:"containers,omitempty"` // :: id → POD/NAME STATE ATTEMPT
}
