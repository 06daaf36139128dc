package lastknown

import "errors"

// HoldUpWrites has m write no file before until is closed, as a disk that hangs does.
func (m *Memory) HoldUpWrites(until <-chan struct{}) {
	m.file.write = func(path string, content *fileContent) error {
		<-until
		return writeFile(path, content)
	}
}

// FailWrites has m write no file any more, as a full disk does.
func FailWrites(m *Memory) {
	m.file.write = func(string, *fileContent) error { return errors.New("no space left on device") }
}
