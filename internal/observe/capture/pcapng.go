package capture

import (
	"encoding/binary"
	"time"
)

// Blocks of a pcapng file: https://www.ietf.org/archive/id/draft-ietf-opsawg-pcapng-03.html
const (
	blockSection   = 0x0a0d0d0a
	blockInterface = 1
	blockNames     = 4
	blockStats     = 5
	blockPacket    = 6

	byteOrder = 0x1a2b3c4d

	optEnd        = 0
	optComment    = 1
	optProgram    = 4 // of a section
	optName       = 2 // of an interface
	optDescribes  = 3
	optResolution = 9
	optFlags      = 2 // of a packet
	optDropped    = 5 // of statistics

	linkRaw = 101 // packets begin with an IP header
)

// A block is appended with startBlock, then its content, then endBlock.
func startBlock(b []byte, kind uint32) ([]byte, int) {
	at := len(b)
	b = binary.LittleEndian.AppendUint32(b, kind)
	return binary.LittleEndian.AppendUint32(b, 0), at
}

func endBlock(b []byte, at int) []byte {
	size := uint32(len(b) - at + 4)
	binary.LittleEndian.PutUint32(b[at+4:], size)
	return binary.LittleEndian.AppendUint32(b, size)
}

func appendOption[S ~string | ~[]byte](b []byte, code uint16, value S) []byte {
	if len(value) > 0xffff {
		value = value[:0xffff]
	}
	b = binary.LittleEndian.AppendUint16(b, code)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(value)))
	b = append(b, value...)
	return pad(b, len(value))
}

// pad fills n bytes up to a multiple of 4.
func pad(b []byte, n int) []byte {
	for ; n%4 != 0; n++ {
		b = append(b, 0)
	}
	return b
}

func endOptions(b []byte) []byte { return binary.LittleEndian.AppendUint32(b, optEnd) }

func appendSection(b []byte, program, comment string) []byte {
	b, at := startBlock(b, blockSection)
	b = binary.LittleEndian.AppendUint32(b, byteOrder)
	b = binary.LittleEndian.AppendUint16(b, 1)
	b = binary.LittleEndian.AppendUint16(b, 0)
	b = binary.LittleEndian.AppendUint64(b, 1<<64-1) // of any length
	b = appendOption(b, optComment, comment)
	b = appendOption(b, optProgram, program)
	return endBlock(endOptions(b), at)
}

func appendInterface(b []byte, name, description string) []byte {
	b, at := startBlock(b, blockInterface)
	b = binary.LittleEndian.AppendUint16(b, linkRaw)
	b = binary.LittleEndian.AppendUint16(b, 0)
	b = binary.LittleEndian.AppendUint32(b, 0) // no packet is cut
	b = appendOption(b, optName, name)
	b = appendOption(b, optDescribes, description)
	b = appendOption(b, optResolution, "\x09") // nanoseconds
	return endBlock(endOptions(b), at)
}

// appendHost names an address, in a block of names.
func appendHost(b []byte, addr [4]byte, name string) []byte {
	b = binary.LittleEndian.AppendUint16(b, 1) // IPv4
	b = binary.LittleEndian.AppendUint16(b, uint16(4+len(name)+1))
	b = append(append(append(b, addr[:]...), name...), 0)
	return pad(b, 4+len(name)+1)
}

// appendDropped appends a block that says how many events are missing.
func appendDropped(b []byte, when time.Time, total uint64, comment string) []byte {
	b, at := startBlock(b, blockStats)
	b = binary.LittleEndian.AppendUint32(b, 0)
	b = appendTime(b, when)
	b = appendOption(b, optComment, comment)
	b = appendOption(b, optDropped, binary.LittleEndian.AppendUint64(nil, total))
	return endBlock(endOptions(b), at)
}

func appendTime(b []byte, when time.Time) []byte {
	ns := uint64(when.UnixNano())
	b = binary.LittleEndian.AppendUint32(b, uint32(ns>>32))
	return binary.LittleEndian.AppendUint32(b, uint32(ns))
}

// tcpConn is a made-up TCP connection, without loss.
type tcpConn struct {
	iface          uint32
	client, server [4]byte
	port           uint16 // the client's; the server's is 80, where Wireshark looks for HTTP
	sent           [2]uint32
	stream         uint32 // the next HTTP/2 stream
}

const serverPort = 80

// maxSegment is the longest payload of a packet, whose length has 16 bits.
const maxSegment = 60_000

// Directions: towards the server, towards the client.
const (
	forth = 0
	back  = 1
)

const (
	tcpSYN = 2
	tcpPSH = 8
	tcpACK = 16
)

// appendSegments appends packets that carry payload; the last one has the comment.
func (c *tcpConn) appendSegments(b []byte, when time.Time, dir int, payload, comment []byte) []byte {
	for {
		n := min(len(payload), maxSegment)
		last := n == len(payload)
		var text []byte
		flags := byte(tcpACK)
		if last {
			text = comment
			flags |= tcpPSH
		}
		b = c.appendPacket(b, when, dir, flags, payload[:n], text)
		if payload = payload[n:]; last {
			return b
		}
	}
}

func (c *tcpConn) appendPacket(b []byte, when time.Time, dir int, flags byte, payload, comment []byte) []byte {
	b, at := startBlock(b, blockPacket)
	b = binary.LittleEndian.AppendUint32(b, c.iface)
	b = appendTime(b, when)
	size := 40 + len(payload)
	b = binary.LittleEndian.AppendUint32(b, uint32(size))
	b = binary.LittleEndian.AppendUint32(b, uint32(size))

	src, dst, from, to := c.client, c.server, c.port, uint16(serverPort)
	if dir == back {
		src, dst, from, to = dst, src, to, from
	}
	ip := len(b)
	b = append(b, 0x45, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(size))
	b = append(b, 0, 0, 0x40, 0, 64, 6, 0, 0) // not to be fragmented; TCP
	b = append(append(b, src[:]...), dst[:]...)
	binary.BigEndian.PutUint16(b[ip+10:], checksum(0, b[ip:ip+20]))

	tcp := len(b)
	b = binary.BigEndian.AppendUint16(b, from)
	b = binary.BigEndian.AppendUint16(b, to)
	b = binary.BigEndian.AppendUint32(b, c.sent[dir])
	ack := c.sent[1-dir]
	if flags&tcpACK == 0 {
		ack = 0
	}
	b = binary.BigEndian.AppendUint32(b, ack)
	b = append(b, 5<<4, flags, 0xff, 0xff, 0, 0, 0, 0)
	b = append(b, payload...)
	pseudo := uint32(src[0])<<8 + uint32(src[1]) + uint32(src[2])<<8 + uint32(src[3]) +
		uint32(dst[0])<<8 + uint32(dst[1]) + uint32(dst[2])<<8 + uint32(dst[3]) + 6 + uint32(20+len(payload))
	binary.BigEndian.PutUint16(b[tcp+16:], checksum(pseudo, b[tcp:]))
	c.sent[dir] += uint32(len(payload))
	if flags&tcpSYN != 0 {
		c.sent[dir]++
	}

	b = pad(b, size)
	if len(comment) > 0 {
		b = appendOption(b, optComment, comment)
	}
	direction := byte(1) // inbound
	if dir == back {
		direction = 2
	}
	b = appendOption(b, optFlags, []byte{direction, 0, 0, 0})
	return endBlock(endOptions(b), at)
}

// checksum computes the checksum of IP and TCP.
func checksum(sum uint32, b []byte) uint16 {
	s := uint64(sum)
	for ; len(b) >= 4; b = b[4:] {
		s += uint64(binary.BigEndian.Uint32(b))
	}
	if len(b) >= 2 {
		s += uint64(binary.BigEndian.Uint16(b))
		b = b[2:]
	}
	if len(b) == 1 {
		s += uint64(b[0]) << 8
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return ^uint16(s)
}
