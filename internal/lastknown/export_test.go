package lastknown

// HoldUpWrites has m write no file before until is closed, as a disk that hangs does.
func (m *Memory) HoldUpWrites(until <-chan struct{}) {
	m.file.write = func(path string, content *fileContent) error {
		<-until
		return writeFile(path, content)
	}
}
