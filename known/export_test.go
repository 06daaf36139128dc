package known

// HoldUpWrites has c write no file before until is closed, as a disk that hangs does.
func (c *Conn) HoldUpWrites(until <-chan struct{}) {
	c.write = func(path string, content *fileContent) error {
		<-until
		return writeFile(path, content)
	}
}
