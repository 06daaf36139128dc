package backend

import "errors"

// Retire takes the backend away, as a reload does.
func (b *Backend) Retire() { b.current.Load().Retire() }

// Statuses returns how many statuses the cache has.
func (b *Backend) Statuses() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	lists, _ := b.inv.Save()
	for _, l := range lists {
		for _, reply := range l.Statuses {
			if len(reply) > 0 {
				n++
			}
		}
	}
	return n
}

// HoldUpWrites makes b write no file before until is closed, as a disk that hangs does.
func (b *Backend) HoldUpWrites(until <-chan struct{}) {
	b.file.write = func(path string, content *fileContent) error {
		<-until
		return writeFile(path, content)
	}
}

// FailWrites makes b fail to write its file from now on, as a full disk does.
func FailWrites(b *Backend) {
	b.file.write = func(string, *fileContent) error { return errors.New("no space left on device") }
}
