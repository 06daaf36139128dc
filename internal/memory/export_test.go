package memory

import "errors"

// Statuses returns how many statuses memory has.
func (c *Conn) Statuses() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.lists {
		for _, k := range l.statuses {
			if len(k.reply) > 0 && k.fresh() {
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
