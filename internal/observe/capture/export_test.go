package capture

// Unpacked returns the bytes of all blocks before compression.
func Unpacked(file []byte) (all []byte) {
	for _, plain := range PlainBlocks(file) {
		all = append(all, plain...)
	}
	return all
}

// PlainBlocks returns the bytes of each block before compression.
func PlainBlocks(file []byte) (all [][]byte) {
	_, blocks, _, _ := readBlocks(file)
	for _, b := range blocks {
		all = append(all, newUnpacker(b.parts).b)
	}
	return all
}

// FileOf returns a file with a block of these bytes.
func FileOf(plain []byte) []byte {
	return appendPart(appendPart(nil, partHeader, []byte("{}")), partAll, encoder.EncodeAll(plain, nil))
}

var encoder = newEncoder(nil, 64<<10, false)

// Archived returns the number of the latest event that the archive has.
func Archived(rec *Recorder) uint64 { return rec.archive.position() }

// PartsOf returns where the parts with events of all calls begin.
func PartsOf(file []byte) (at []int) {
	r := partReader{rest: file}
	for {
		whole, kind, _, ok := r.next()
		if !ok {
			return at
		}
		if kind != partAll && kind != partMore && kind != partMoreNotable {
			continue
		}
		at = append(at, len(file)-len(r.rest)-len(whole))
	}
}

// AskedFor returns the part with which an answer to a reader begins.
func AskedFor(content []byte) []byte { return appendPart(nil, partAsked, content) }
