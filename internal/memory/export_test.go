package memory

import "errors"

// Memory returns the Memory that the connection reads and writes.
func (c *Conn) Memory() *Memory { return c.mem }

// Statuses returns how many statuses memory has.
func (c *Conn) Statuses() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	lists, _ := c.mem.inv.Save()
	for _, l := range lists {
		for _, reply := range l.Statuses {
			if len(reply) > 0 {
				n++
			}
		}
	}
	return n
}

// HoldUpWrites makes m write no file before until is closed, as a disk that hangs does.
func (m *Memory) HoldUpWrites(until <-chan struct{}) {
	m.file.write = func(path string, content *fileContent) error {
		<-until
		return writeFile(path, content)
	}
}

// FailWrites makes m fail to write its file from now on, as a full disk does.
func FailWrites(m *Memory) {
	m.file.write = func(string, *fileContent) error { return errors.New("no space left on device") }
}
