package capture

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Parts of the two shelves take turns in the file of a Keeper: after a change, all calls that came later were lost.
func TestAKeepersFileIsReadableBehindAChange(t *testing.T) {
	rec := NewRecorder(Config{Bytes: 4 << 20})
	path := filepath.Join(t.TempDir(), "recorder-1.blocks")
	k := NewKeeper(rec, path, func() FileHeader { return FileHeader{} })
	for seq := uint64(1); seq <= 9; seq++ {
		ev := Event{Kind: Start, Seq: seq, Call: seq, Method: "/x.Y/Z", Time: time.Unix(int64(seq), 0)}
		if seq%3 == 0 {
			ev = Event{Kind: Changed, Seq: seq, Time: ev.Time, Change: &Change{Time: ev.Time, What: Reloaded}}
		}
		rec.Add(&ev)
		rec.archive.drain()
		require.NoError(t, k.Write())
	}
	require.NoError(t, k.Close())
	assert.Equal(t, []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9}, restored(t, path))
}

// restored returns the numbers of the events that a process gets from the files of the one before it.
func restored(t *testing.T, paths ...string) []uint64 {
	t.Helper()
	var files [][]byte
	for _, path := range paths {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		files = append(files, data)
	}
	next := NewRecorder(Config{Bytes: 4 << 20})
	require.NoError(t, next.Restore(files...))
	var seen []uint64
	var ev Event
	for f := next.Follow(true); f.TryNext(&ev); {
		seen = append(seen, ev.Seq)
	}
	return seen
}

// The end of a block went into the second file, and its beginning into the first: nobody could read the end.
func TestANewFileHasTheWholeOfABlockThatItEnds(t *testing.T) {
	rec := NewRecorder(Config{Bytes: 4 << 20})
	path := filepath.Join(t.TempDir(), "recorder-1.blocks")
	k := NewKeeper(rec, path, func() FileHeader { return FileHeader{} })
	add := func(seq uint64) {
		rec.Add(&Event{Kind: Start, Seq: seq, Call: seq, Method: "/x.Y/Z", Time: time.Unix(int64(seq), 0)})
		rec.archive.drain()
	}
	add(1)
	require.NoError(t, k.Write())
	add(2)
	rec.archive.all.packer.end()
	k.size = 1 << 40 // the file is full
	require.NoError(t, k.Write())
	add(3)
	require.NoError(t, k.Close())
	assert.Equal(t, []uint64{1, 2, 3}, restored(t, older(path, 1), path))
}

// The index of a block says which changes it has, so that a process that starts need not unpack an hour to find out.
func TestTheChangesThatARecordingHasAreKnown(t *testing.T) {
	all := []Change{{Time: time.Unix(1, 0), What: Up, Backend: "a"}, {Time: time.Unix(1, 0), What: Up, Backend: "b"}, {Time: time.Unix(3, 0), What: Gone, Backend: "a"}}
	rec := NewRecorder(Config{})
	rec.Change(all[0])
	rec.record(&Event{Kind: Start, Call: 1, Method: "/x.Y/Z", Time: time.Unix(2, 0)})
	rec.archive.drain()
	for _, s := range []*shelf{&rec.archive.all, &rec.archive.notable} {
		s.packer.end()
	}
	data, _ := rec.Snapshot(&FileHeader{})
	next := NewRecorder(Config{})
	require.NoError(t, next.Restore(data))
	assert.Equal(t, all[1:], next.Lacks(all))
	assert.Empty(t, next.Lacks(all[:1]))
	long := Change{Time: time.Unix(0, 1), What: Up, Backend: "c"}
	assert.Equal(t, all[2:], next.Lacks([]Change{long, all[2]}), "none is there: those since it began")
}

// What a process reads before it serves says the same as all of the file, whenever its owner was killed. If it cannot, it says so.
func TestTheOutlineOfAFileIsThatOfItsBlocks(t *testing.T) {
	rec := NewRecorder(Config{Bytes: 4 << 20})
	path := filepath.Join(t.TempDir(), "recorder-1.blocks")
	k := NewKeeper(rec, path, func() FileHeader { return FileHeader{} })
	outlined := func(data []byte) ([]*block, bool) {
		return outline(io.NewSectionReader(bytes.NewReader(data), 0, int64(len(data))))
	}
	indices := func(blocks []*block) (all []blockIndex) {
		for _, b := range blocks {
			all = append(all, b.blockIndex)
		}
		return all
	}
	var data []byte
	for seq := uint64(1); seq <= 59; seq++ {
		ev := Event{Kind: Start, Seq: seq, Call: seq, Method: "/x.Y/Z", Time: time.Unix(int64(seq), 0)}
		if seq%4 == 0 {
			ev = Event{Kind: Changed, Seq: seq, Time: ev.Time, Change: &Change{Time: ev.Time, What: Reloaded}}
		}
		rec.Add(&ev)
		rec.archive.drain()
		for every, p := range map[uint64]*packer{7: rec.archive.all.packer, 10: rec.archive.notable.packer} {
			if seq%every == 0 && p.block != nil {
				p.end()
			}
		}
		require.NoError(t, k.Write())
		var err error
		data, err = os.ReadFile(path)
		require.NoError(t, err)
		got, ok := outlined(data)
		require.True(t, ok)
		_, want, _, lost := readBlocks(data)
		require.NoError(t, lost)
		require.Equal(t, indices(want), indices(got), "after %d", seq)
	}
	require.NoError(t, k.Close())
	var parts [][]byte
	for r := (partReader{rest: data}); ; {
		whole, _, _, ok := r.next()
		if !ok {
			break
		}
		parts = append(parts, whole)
	}
	for i, part := range parts {
		if kind := part[4]; kind != partIndex && kind != partIndexNotable {
			continue
		}
		changed := bytes.Clone(part)
		changed[partHead] ^= 1
		for name, instead := range map[string][]byte{"damaged": changed, "missing": nil, "cut off": part[:20]} {
			other := slices.Concat(slices.Concat(parts[:i]...), instead, slices.Concat(parts[i+1:]...))
			got, ok := outlined(other)
			if ok && name == "missing" { // it is read like a block that goes on
				_, want, _, _ := readBlocks(other)
				assert.Equal(t, indices(want), indices(got))
				continue
			}
			assert.False(t, ok, "part %d is %s", i, name)
		}
	}
	_, ok := outlined(data[:len(data)-1])
	assert.False(t, ok)
}
