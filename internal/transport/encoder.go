package transport

import "encoding/binary"

// An encoder compresses the header blocks of one direction of a connection: RFC 7541.
//
// Fields that are the same in each call (methods, content type, status) go into the dynamic
// table once and take a byte or two from then on. Other fields are not compressed: on a local
// socket, bandwidth is cheaper than CPU time. The table never evicts an entry: when it is full, it
// takes no more. So the index of an entry follows from the number of entries after it. The decoder of the peer has the same
// table, as long as blocks are sent in the order in which they were encoded: conn.mu guards both.
type encoder struct {
	fields map[field]int  // :: field in the table → number of entries up to it
	names  map[string]int // :: name → the newest entry with that name, counted likewise
	count  int            // entries in the table
	size   int            // their size, as RFC 7541, section 4.1 counts it
	max    int            // upper bound of size
	resize bool           // the next block must begin with a table size update
}

// A field is a header field to send, with its name in lower case.
type field struct{ name, value string }

const (
	tableSize   = 4096 // size of the dynamic table: ours, and the peer's by default
	staticTable = 61   // entries of the static table; those of the dynamic table follow
	fieldCost   = 32   // what an entry takes in addition to its name and value
)

// newEncoder returns an encoder whose table is empty, as that of the peer's decoder is at first.
func newEncoder() *encoder {
	return &encoder{fields: map[field]int{}, names: map[string]int{}, max: tableSize}
}

// limit bounds the dynamic table by SETTINGS_HEADER_TABLE_SIZE, which the peer has sent. The next
// block announces the size that we use, and begins with an empty table.
func (e *encoder) limit(n uint32) {
	size := int(min(n, tableSize))
	if size == e.max {
		return
	}
	e.max, e.size, e.count, e.resize = size, 0, 0, true
	clear(e.fields)
	clear(e.names)
}

// begin appends the beginning of a block: table size updates, if they are due.
func (e *encoder) begin(b []byte) []byte {
	if !e.resize {
		return b
	}
	e.resize = false
	b = appendInt(b, 0x20, 5, 0) // evicts all entries
	return appendInt(b, 0x20, 5, e.max)
}

// static appends an entry of the static table: RFC 7541, appendix A.
func (*encoder) static(b []byte, index int) []byte { return append(b, 0x80|byte(index)) }

// repeated appends a field that later blocks will repeat, and adds it to the table if there is room.
func (e *encoder) repeated(b []byte, name, value string) []byte {
	f := field{name, value}
	if at, ok := e.fields[f]; ok {
		return appendInt(b, 0x80, 7, staticTable+1+e.count-at)
	}
	size := len(name) + len(value) + fieldCost
	if e.size+size > e.max {
		return e.once(b, name, value)
	}
	b = e.literal(b, 0x40, 6, name, value)
	e.size += size
	e.count++
	e.fields[f] = e.count
	e.names[name] = e.count
	return b
}

// varying appends a field whose name later blocks will repeat, with other values. The first value
// goes into the table for the sake of the name.
func (e *encoder) varying(b []byte, name, value string) []byte {
	if e.names[name] == 0 {
		return e.repeated(b, name, value)
	}
	return e.once(b, name, value)
}

// once appends a field without adding it to the table.
func (e *encoder) once(b []byte, name, value string) []byte {
	return e.literal(b, 0, 4, name, value)
}

// literal appends a field with its value as text. kind says, in the bits before the index of the name, whether the peer adds the
// field to its table.
func (e *encoder) literal(b []byte, kind byte, bits int, name, value string) []byte {
	if at := e.names[name]; at != 0 {
		b = appendInt(b, kind, bits, staticTable+1+e.count-at)
	} else if index := staticName(name); index != 0 {
		b = appendInt(b, kind, bits, index)
	} else {
		b = appendString(append(b, kind), name)
	}
	return appendString(b, value)
}

// staticName returns the index of a name in the static table, for names that gRPC uses, or 0.
func staticName(name string) int {
	switch name {
	case ":authority":
		return 1
	case ":path":
		return 4
	case ":status":
		return 8
	case "authorization":
		return 23
	case "content-type":
		return 31
	case "user-agent":
		return 58
	}
	return 0
}

// appendInt appends an integer whose first byte holds the given number of bits: RFC 7541, section
// 5.1.
func appendInt(b []byte, kind byte, bits, n int) []byte {
	most := 1<<bits - 1
	if n < most {
		return append(b, kind|byte(n))
	}
	return binary.AppendUvarint(append(b, kind|byte(most)), uint64(n-most))
}

// appendString appends a string as it is, without Huffman coding: RFC 7541, section 5.2.
func appendString(b []byte, s string) []byte {
	return append(appendInt(b, 0, 7, len(s)), s...)
}

// listSize returns the size of fields as a header list, as SETTINGS_MAX_HEADER_LIST_SIZE counts it.
func listSize(fields []field) int {
	n := 0
	for _, f := range fields {
		n += len(f.name) + len(f.value) + fieldCost
	}
	return n
}
