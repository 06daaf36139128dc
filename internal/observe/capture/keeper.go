package capture

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/criproxy/criproxy/internal/base/host"
)

// A Keeper keeps the events of a [Recorder] in files, for a process that comes after a crash: PATH, and the one before it
// with a 1 before the extension. Together they have at least what is in memory, and at most about twice as much. Only their owner can read them. Only one goroutine at a time may use a Keeper.
type Keeper struct {
	rec    *Recorder
	path   string
	header func() FileHeader
	file   *os.File // nil: none is open
	size   int64    // of its whole parts
	synced time.Time
}

// syncInterval is how often a Keeper waits for the disk. A power cut loses what came since then.
const syncInterval = 20 * time.Second

// NewKeeper returns a keeper for the events of rec.
func NewKeeper(rec *Recorder, path string, header func() FileHeader) *Keeper {
	return &Keeper{rec: rec, path: path, header: header}
}

// Write writes what the archive has got since the latest Write. After an error the next Write tries it again.
func (k *Keeper) Write() error {
	a := k.rec.archive
	anew := k.file == nil || k.size > int64(a.all.max+a.notable.max)
	if anew {
		if err := k.open(); err != nil {
			return err
		}
	}
	type fresh struct {
		of    *block
		parts []byte
	}
	var all []fresh
	a.each(func(b *block) {
		if anew && (b.kind == partNotable || !b.over || b.written < len(b.parts)) {
			b.written = 0 // each file has all notable calls, and the first part of a block of which it has more
		}
		if b.written < len(b.parts) {
			all = append(all, fresh{b, b.parts[b.written:]}) // these bytes never change, so nobody waits for the disk
		}
	})
	if len(all) == 0 {
		return nil
	}
	size := k.size
	for _, one := range all {
		if _, err := k.file.Write(one.parts); err != nil {
			err = errors.Join(fmt.Errorf("writing the recording: %w", err), k.file.Truncate(k.size))
			_, _ = k.file.Seek(k.size, 0) // a failure shows at the next Write
			return err
		}
		size += int64(len(one.parts))
	}
	k.size = size
	a.mu.Lock()
	for _, one := range all {
		one.of.written += len(one.parts)
	}
	a.mu.Unlock()
	if time.Since(k.synced) < syncInterval {
		return nil
	}
	k.synced = time.Now()
	return k.file.Sync()
}

// open begins a file, and closes the one before it.
func (k *Keeper) open() error {
	if err := host.Folder(filepath.Dir(k.path), host.Sticky); err != nil {
		return fmt.Errorf("keeping the recording: %w", err)
	}
	h := k.header()
	head := appendHeader(nil, &h)
	file, err := beginFile(k.path, 2, head)
	if err != nil {
		return fmt.Errorf("keeping the recording: %w", err)
	}
	if k.file != nil {
		err = k.file.Close()
	} else {
		k.rec.archive.each(func(b *block) { b.written = 0 })
	}
	k.file, k.size = file, int64(len(head))
	return err
}

// Close writes all events that were recorded until now, and closes the file.
func (k *Keeper) Close() error {
	k.rec.archive.drain()
	err := k.Write()
	if k.file == nil {
		return err
	}
	return errors.Join(err, k.file.Sync(), k.file.Close())
}

// Remove removes the files.
func (k *Keeper) Remove() {
	_ = os.Remove(k.path)
	_ = os.Remove(older(k.path, 1))
}
