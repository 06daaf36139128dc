package capture

import (
	"cmp"
	"encoding/json"
	"slices"
)

// asked is what a reader of blocks asked for, with the indices of those blocks with all calls that it does not get.
type asked struct {
	Want
	Began uint64       // as in Want
	Left  []blockIndex // nobody wants these, so their events are not missing
}

// Blocks returns the events that are wanted, and perhaps others, as parts of a file of blocks, for a [Reader], which leaves
// the others out. Nothing is decoded or copied for that. last is the number of the latest event.
func (r *Recorder) Blocks(h *FileHeader, want Want) (all [][]byte, last uint64) {
	a := r.archive
	a.drain()
	a.whole()
	a.mu.Lock()
	defer a.mu.Unlock()
	last = a.ring.next - 1
	want.began = last
	q := asked{Want: want, Began: last}
	q.Failed = false // which blocks these are in is found out here
	for _, b := range a.snapshot(want.From, &want).blocks {
		if b.parts == nil {
			q.Left = append(q.Left, b.blockIndex)
			continue
		}
		all = append(all, b.parts)
		if !b.over {
			all = append(all, b.index())
		}
	}
	content, _ := json.Marshal(&q) // cannot fail: it holds numbers and times
	return append([][]byte{appendHeader(nil, h), appendPart(nil, partAsked, content)}, all...), last
}

// chosen returns what the reader of a file asked for, nil if it is all. It adds to a shelf, which has the blocks of the file, those
// that the reader did not get.
func chosen(data []byte, all *shelf) *Want {
	r := partReader{rest: data}
	_, kind, content, ok := r.next()
	if kind == partHeader {
		_, kind, content, ok = r.next()
	}
	var q asked
	if !ok || kind != partAsked || json.Unmarshal(content, &q) != nil {
		return nil
	}
	for _, x := range q.Left {
		all.blocks = append(all.blocks, &block{blockIndex: x, kind: partAll, over: true})
	}
	slices.SortStableFunc(all.blocks, func(a, b *block) int { return cmp.Compare(a.First, b.First) })
	q.Want.began = q.Began
	return &q.Want
}
