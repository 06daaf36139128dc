package memory

import (
	"sync"

	"github.com/criproxy/criproxy/internal/inventory"
)

// A Memory holds the latest answers of one backend. It belongs to the backend's name: it outlives
// the connections to the backend, and with [Memory.Encode] and [Receive] the process. All
// connections that use a Memory must lead to the same backend. It is safe for concurrent use.
type Memory struct {
	file file

	mu                sync.Mutex // guards the fields below, and the state of all connections
	name              string
	inv               *inventory.Inventory
	seen              bool                 // the backend has answered a list since the machine was booted
	answeredSinceBoot bool                 // the backend has answered another call: it may have items
	late              map[string]string    // :: method → why its answers come late
	gone              bool                 // the backend is gone, or has not answered a list since
	unsure            error                // why an earlier memory could not be read, until the backend is seen
	failing           bool                 // the latest attempt to write the file failed, and was reported
	news              bool                 // the file is out of date, apart from the inventory
	conn              *Conn                // the latest connection that uses this memory
	successor         func(inventory.Note) // passes the calls of this process to its successor; nil if there is none
}

// newMemory returns an empty Memory.
func newMemory(name string, at File) *Memory {
	return &Memory{name: name, inv: inventory.New(), late: map[string]string{}, file: file{File: at, write: writeFile}}
}

// Err returns why an earlier memory could not be read, nil if it could, or if the backend has answered since.
func (m *Memory) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.unsure
}

// unseen reports whether the backend has answered nothing since the machine was booted. m.mu is held.
func (m *Memory) unseen() bool { return !m.seen && !m.answeredSinceBoot }

// noteAnswer notes that the backend has answered something, and so may have items. m.mu is held.
func (m *Memory) noteAnswer() {
	m.news = m.news || !m.answeredSinceBoot
	m.answeredSinceBoot = true
}

// answered is noteAnswer with the lock.
func (c *Conn) answered() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mem.noteAnswer()
}
