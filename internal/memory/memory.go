package memory

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// A Memory holds the latest answers of one backend. It belongs to the backend's name: it outlives
// the connections to the backend, and with [Memory.Encode] and [Receive] the process. All
// connections that use a Memory must lead to the same backend. It is safe for concurrent use.
type Memory struct {
	file file

	mu                sync.Mutex // guards the fields below, and the state of all connections
	name              string
	address           string
	lists             map[string]*memory
	replies           map[string]*replyMemory
	seen              bool              // the backend has answered a list since the machine was booted
	answeredSinceBoot atomic.Bool       // the backend has answered another call: it may have items
	late              map[string]string // :: method → why its answers come late
	gone              bool              // the backend is gone, or has not answered a list since
	unsure            error             // why an earlier memory could not be read, until the backend is seen
	news              bool              // the file is out of date, apart from its lists
	conn              *Conn             // the latest connection that uses this memory
	successor         func(Note)        // passes the calls of this process to its successor; nil if there is none
}

// replyMemory is the latest reply to an empty request of a method.
type replyMemory struct {
	reply []byte
	known bool
}

// NewMemory returns an empty Memory that no file keeps.
func NewMemory(name string) *Memory {
	return &Memory{name: name, lists: map[string]*memory{}, replies: map[string]*replyMemory{}, late: map[string]string{}, file: file{write: writeFile}}
}

func newMemory() *memory {
	return &memory{asked: 1, answered: 1, statuses: map[string]known{}, changes: map[string]change{}, emptied: map[string]emptied{}, renamed: map[string]uint64{}}
}

// attach makes l keep its answers in m, and reads what m has of that list already. It fails if
// that cannot be read.
func (m *Memory) attach(l *list) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := l.spec.List + l.spec.Stream
	found := m.lists[key]
	if found == nil {
		found = newMemory()
		m.lists[key] = found
	}
	if by := found.by; by != nil && (by.spec.ID != l.spec.ID || by.number != l.number) { // the profile has changed
		by.settle()
		found.raw = by.reply(everything)
	}
	l.memory, found.by = found, l
	raw := found.raw
	if raw == nil {
		return nil
	}
	found.raw = nil
	items, err := l.parse(raw)
	if err == nil && len(items.ids) == 0 && len(raw) > 0 {
		err = errors.New("it is not empty, but no item can be read from it")
	}
	if err != nil {
		found.complete = false
		return fmt.Errorf("%s: %w", key, err)
	}
	found.items = *items
	return nil
}

// attachReply is attach for a reply.
func (m *Memory) attachReply(k *kept) {
	m.mu.Lock()
	defer m.mu.Unlock()
	found := m.replies[k.spec.Method]
	if found == nil {
		found = &replyMemory{}
		m.replies[k.spec.Method] = found
	}
	k.replyMemory = found
}

// Err returns why an earlier memory could not be read, nil if it could, or if the backend
// has answered since.
func (m *Memory) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.unsure
}

// bytes is the size of all answers in m. m.mu is held.
func (m *Memory) bytes() int {
	n := 0
	for _, l := range m.lists {
		n += l.bytes()
	}
	for _, k := range m.replies {
		n += len(k.reply)
	}
	return n
}

// forgetAll forgets a memory that cannot be read. The lists then fail, because there may have been
// items in it.
func (m *Memory) forgetAll(why error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seen, m.unsure = false, fmt.Errorf("%s is broken (%w); if the runtime is running, it will be written anew as soon as it answers; if it never comes back, remove the file", m.file.Path, why)
}

// noteAnswer notes that the backend has answered something, and so may have items. m.mu is held.
func (m *Memory) noteAnswer() {
	if !m.answeredSinceBoot.Swap(true) {
		m.news = true
	}
}

// answered calls noteAnswer after an answer, unless an earlier answer has done so.
func (c *Conn) answered() {
	if c.mem.answeredSinceBoot.Load() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mem.noteAnswer()
}
