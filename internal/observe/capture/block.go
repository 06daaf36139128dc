package capture

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"slices"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/grpc/codes"
)

// A block has many events, compressed. It is written in parts, each of which ends with a whole event. In memory and in
// files a block is the same bytes; each can be read without the others.
//
//	part     = "CRB" version kind length:4 crc32c:4 content    length and crc32c of the content, little-endian
//	kinds    = 'H' the FileHeader of the events, as JSON
//	           'A' the first part of a block with all calls, a part of a zstd frame
//	           'N' the first part of a block with notable calls only, likewise
//	           'M' the next part of the frame of the block
//	           'I' the index of the block, which ends it, as JSON
//	           'm' and 'i', the same of the latest block of notable calls
//	           'W' what a reader asked for, as JSON, before the first block of an answer to that
//
// The version is that of the section. A reader skips what it does not know, and the numbers of the events show how many are
// missing.

const (
	blockMagic   = "CRB"
	blockVersion = 1
	partHead     = len(blockMagic) + 2 + 4 + 4

	partHeader       = 'H'
	partAll          = 'A'
	partNotable      = 'N'
	partMore         = 'M'
	partIndex        = 'I'
	partAsked        = 'W'
	partMoreNotable  = 'm' // more of the latest block of notable calls, after which another block may have begun
	partIndexNotable = 'i'

	maxPlain  = 4 << 20  // of the bytes of a block before compression, from which it ends
	maxUnpack = 64 << 20 // likewise, that a reader accepts
	maxPieces = 1 << 14
)

var crcTable = crc32.MakeTable(crc32.Castagnoli)

func appendPart(b []byte, kind byte, content []byte) []byte {
	b = append(append(b, blockMagic...), blockVersion, kind)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(content)))
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(content, crcTable))
	return append(b, content...)
}

// A blockIndex says what is in a block, so that readers need not unpack it to find out.
type blockIndex struct {
	First   uint64   `json:"first"` // the smallest number of an event
	Last    uint64   `json:"last"`  // the largest one
	Call    uint64   `json:"call"`  // the largest number of a call
	From    int64    `json:"from"`  // the earliest time of an event, Unix time in nanoseconds
	To      int64    `json:"to"`    // the latest one
	Mono    int64    `json:"mono"`  // of the event with the largest number
	At      int64    `json:"at"`    // its time
	Methods []string `json:"methods,omitempty"`
	Codes   uint32   `json:"codes"`           // bit n: a leg ended with code n
	Needs   []uint64 `json:"needs,omitempty"` // blocks, by their first number, in which calls began that failed in this one; or anyBlock
	Open    []uint64 `json:"open"`            // of a block with all calls, the calls under way when it began; nil: not known
	Changes []uint64 `json:"changes"`         // hashes of the keys of its changes
}

// anyBlock stands for the blocks in which a call began of which that is not known.
const anyBlock = 0

func (x *blockIndex) add(ev *Event) {
	t := ev.Time.UnixNano()
	if x.First == 0 {
		x.First, x.From, x.To = ev.Seq, t, t
	}
	x.First, x.Call, x.From, x.To = min(x.First, ev.Seq), max(x.Call, ev.Call), min(x.From, t), max(x.To, t)
	if ev.Seq >= x.Last && ev.Kind != Changed { // the time of a change is when it began
		x.Mono, x.At = int64(ev.Mono), t
	}
	x.Last = max(x.Last, ev.Seq)
	if ev.Method != "" {
		x.Methods = include(x.Methods, ev.Method)
	}
	if ev.Kind == End {
		x.Codes |= 1 << min(ev.Code, 31)
	}
	if ev.Change != nil {
		x.Changes = include(x.Changes, ev.Change.Key().hash())
	}
}

func include[T comparable](all []T, one T) []T {
	if slices.Contains(all, one) {
		return all
	}
	return append(all, one)
}

// A block of the archive. Its parts only ever grow.
type block struct {
	blockIndex
	kind    byte
	parts   []byte
	written int // how many bytes of these are in the file of Keep
	over    bool
}

// index returns the part that ends the block.
func (b *block) index() []byte {
	content, _ := json.Marshal(&b.blockIndex) // cannot fail: it holds strings and numbers
	kind := byte(partIndex)
	if b.kind == partNotable {
		kind = partIndexNotable
	}
	return appendPart(nil, kind, content)
}

// A packer writes the blocks of a shelf.
type packer struct {
	kind    byte
	shapes  *shapes
	window  int // bytes in which the encoder looks for what repeats
	packing *packing
	enc     *zstd.Encoder
	sink    bytes.Buffer // what enc has written
	plain   []byte       // events that enc has not got
	unsaid  int          // bytes that enc has got since it was flushed
	total   int          // of the block, before compression
	block   *block       // nil if none has begun
}

const plainAtOnce = 16 << 10 // what the encoder gets at once

// newEncoder returns an encoder that takes little time. Its frames have a checksum if sum is set.
func newEncoder(w io.Writer, window int, sum bool) *zstd.Encoder {
	enc, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(window),
		zstd.WithLowerEncoderMem(true), zstd.WithEncoderCRC(sum))
	if err != nil {
		panic(err) // cannot happen: the options are constants
	}
	return enc
}

// add adds an event to the current block, or to a new one, which add returns.
func (p *packer) add(ev *Event) (begun *block) {
	if p.block == nil {
		p.packing = newPacking(p.shapes)
		p.block = &block{kind: p.kind}
		begun = p.block
		p.sink.Reset()
		if p.enc == nil {
			p.enc = newEncoder(&p.sink, p.window, false)
		} else {
			p.enc.Reset(&p.sink)
		}
		p.unsaid, p.total = 0, 0
	}
	before := len(p.plain)
	p.plain = appendEvent(p.plain, ev, false, p.packing)
	p.total += len(p.plain) - before
	p.block.add(ev)
	if len(p.plain) >= plainAtOnce {
		p.compress()
	}
	return begun
}

func (p *packer) compress() {
	p.unsaid += len(p.plain)
	_, _ = p.enc.Write(p.plain) // the sink never fails
	if p.sink.Len() >= 4*plainAtOnce {
		p.part()
	}
	if p.plain = p.plain[:0]; cap(p.plain) > 64*plainAtOnce {
		p.plain = nil
	}
}

// flush makes the block readable up to the latest event.
func (p *packer) flush() {
	if p.block == nil {
		return
	}
	if p.compress(); p.unsaid > 0 {
		_ = p.enc.Flush() // likewise
		p.unsaid = 0
		p.part()
	}
}

// part moves what is in the sink into the block.
func (p *packer) part() {
	kind := p.kind
	if len(p.block.parts) > 0 {
		kind = partMore
		if p.kind == partNotable {
			kind = partMoreNotable
		}
	}
	p.block.parts = appendPart(p.block.parts, kind, p.sink.Bytes())
	p.sink.Reset()
}

// full reports whether the block should end. packed is how long it may be.
func (p *packer) full(packed int) bool {
	return p.block != nil && (len(p.block.parts)+p.sink.Len() >= packed || p.total >= maxPlain || len(p.packing.known) >= maxPieces)
}

// end ends the block.
func (p *packer) end() {
	p.compress()
	_ = p.enc.Close() // likewise
	p.part()
	p.block.parts = slices.Concat(p.block.parts, p.block.index()) // without unused capacity
	p.block.over, p.block, p.packing = true, nil, nil
}

// partReader reads parts, and passes over what it cannot read.
type partReader struct {
	rest    []byte
	skipped error // what it passed over since the latest part, nil if nothing
}

// next returns the next part as a whole, its kind and its content. It returns false at the end.
func (r *partReader) next() (whole []byte, kind byte, content []byte, ok bool) {
	r.skipped = nil
	var before error
	for cut := false; ; {
		at := bytes.Index(r.rest, []byte(blockMagic))
		if at != 0 && len(r.rest) > 0 {
			r.skipped = cmp.Or(r.skipped, errCorrupt)
		}
		if at < 0 || len(r.rest)-at < partHead {
			if cut { // a process that was killed may leave half a part
				r.skipped = before
			}
			return nil, 0, nil, false
		}
		r.rest = r.rest[at:]
		size := uint64(binary.LittleEndian.Uint32(r.rest[5:]))
		if size > uint64(len(r.rest)-partHead) {
			before, cut = r.skipped, true // unless the length is corrupt, and another part follows
			r.rest = r.rest[1:]
			continue
		}
		whole = r.rest[: partHead+int(size) : partHead+int(size)]
		content = whole[partHead:]
		version := whole[3]
		switch {
		case crc32.Checksum(content, crcTable) != binary.LittleEndian.Uint32(whole[9:]):
			r.skipped, r.rest = errCorrupt, r.rest[1:]
		case version > blockVersion:
			r.skipped = fmt.Errorf("a part has version %d, and this criproxy reads only versions up to %d", version, blockVersion)
			r.rest = r.rest[len(whole):]
		default:
			r.rest = r.rest[len(whole):]
			return whole, whole[4], content, true
		}
	}
}

var errCorrupt = errors.New("a part is corrupt")

// readBlocks reads a file of blocks. A block without its end is read as far as it goes. Blocks that cannot be read are left
// out, and lost says why. If atEnd, these came after all blocks, so that no number shows that events are missing.
func readBlocks(data []byte) (h FileHeader, blocks []*block, atEnd bool, lost error) {
	r := partReader{rest: data}
	open := map[byte]*block{} // :: kind → the latest block of it: a Keeper writes parts of both as they come
	var latest byte
	finish := func(kind byte) {
		b := open[kind]
		if b == nil {
			return
		}
		if b.Last == 0 { // its index is missing
			u, began := b.unpack(), map[uint64]bool{}
			for ev := (Event{}); u.next(&ev); {
				b.add(&ev)
				if ev.Kind == Start && ev.front() {
					began[ev.Call] = true
				} else if ev.Kind == End && ev.front() && ev.Code != codes.OK && !began[ev.Call] {
					b.Needs = []uint64{anyBlock}
				}
			}
		}
		if b.Last > 0 {
			b.parts, b.over = slices.Clone(b.parts), true // without unused capacity
			blocks = append(blocks, b)
		}
		delete(open, kind)
	}
	for {
		whole, kind, content, ok := r.next()
		if r.skipped != nil {
			lost, atEnd = r.skipped, true
			finish(partNotable)
			finish(partAll)
		}
		if !ok {
			finish(partNotable)
			finish(partAll)
			return h, blocks, atEnd, lost
		}
		of := latest
		switch kind {
		case partMoreNotable, partIndexNotable:
			of = partNotable
		case partMore, partIndex:
			if open[partAll] != nil {
				of = partAll
			}
		}
		b := open[of]
		switch kind {
		case partHeader:
			if json.Unmarshal(content, &h) != nil {
				lost = errCorrupt
			}
		case partAll, partNotable:
			finish(kind)
			open[kind], latest = &block{kind: kind, parts: slices.Clone(whole)}, kind
			atEnd = atEnd && kind == partNotable
		case partMore, partMoreNotable:
			if b != nil {
				b.parts = append(b.parts, whole...)
			}
		case partIndex, partIndexNotable:
			if b != nil && json.Unmarshal(content, &b.blockIndex) == nil {
				b.parts = append(b.parts, whole...)
			}
			finish(of)
		}
	}
}

// An unpacker reads the events of a block.
type unpacker struct {
	reader
	u unpacking
}

// newUnpacker returns an unpacker of the parts of a block. What cannot be unpacked is missing at its end.
func newUnpacker(parts []byte) *unpacker {
	var frame []byte
	for r := (partReader{rest: parts}); ; {
		_, kind, content, ok := r.next()
		if !ok || r.skipped != nil {
			break
		}
		if kind != partIndex && kind != partIndexNotable {
			frame = append(frame, content...)
		}
	}
	u := &unpacker{reader: newReader()}
	dec, err := zstd.NewReader(bytes.NewReader(frame), zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(maxUnpack), zstd.WithDecoderMaxWindow(1<<20)) // twice what blocks have
	if err != nil {
		return u // cannot happen: the options are constants
	}
	defer dec.Close()
	u.b, _ = io.ReadAll(io.LimitReader(dec, maxUnpack)) // what is before an error is good
	return u
}

// unpack returns an unpacker of the events without their messages.
func (b *block) unpack() *unpacker {
	u := newUnpacker(b.parts)
	u.u.from.seq = math.MaxUint64
	return u
}

// next reads the next event, and reports whether there is one.
func (u *unpacker) next(ev *Event) bool {
	if len(u.b) == 0 {
		return false
	}
	u.event(ev, &u.u)
	return u.b != nil && ev.Kind >= Start && ev.Kind <= Changed && ev.Kind != Missed && ev.Seq > 0 && ev.Leg >= 0 && ev.Leg <= maxLeg && ev.Size >= 0 && ev.Mono >= 0
}
