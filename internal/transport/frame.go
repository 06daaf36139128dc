package transport

import (
	"encoding/binary"

	"golang.org/x/net/http2"
)

// Sizes of frames and windows in RFC 9113.
const (
	frameHeaderLen = 9
	firstWindow    = 65535     // initial window of a connection, and of streams by default
	maxWindow      = 1<<31 - 1 // of connections and streams
	smallestFrame  = 1 << 14   // smallest value of SETTINGS_MAX_FRAME_SIZE
	lastStreamID   = 1<<31 - 1
)

// appendFrame appends the header of a frame.
func appendFrame(b []byte, length int, kind http2.FrameType, flags http2.Flags, stream uint32) []byte {
	return append(b,
		byte(length>>16), byte(length>>8), byte(length),
		byte(kind), byte(flags),
		byte(stream>>24), byte(stream>>16), byte(stream>>8), byte(stream))
}

// appendSettings appends a SETTINGS frame.
func appendSettings(b []byte, settings ...http2.Setting) []byte {
	b = appendFrame(b, 6*len(settings), http2.FrameSettings, 0, 0)
	for _, s := range settings {
		b = binary.BigEndian.AppendUint16(b, uint16(s.ID))
		b = binary.BigEndian.AppendUint32(b, s.Val)
	}
	return b
}

// appendPing appends a PING, or with the flag ACK the answer to one.
func appendPing(b []byte, data [8]byte, flags http2.Flags) []byte {
	return append(appendFrame(b, len(data), http2.FramePing, flags, 0), data[:]...)
}

// appendWindowUpdate appends a WINDOW_UPDATE by n bytes, of a stream, or with stream 0 of the connection. n must not be 0.
func appendWindowUpdate(b []byte, stream uint32, n int) []byte {
	return binary.BigEndian.AppendUint32(appendFrame(b, 4, http2.FrameWindowUpdate, 0, stream), uint32(n))
}

// appendReset appends a RST_STREAM.
func appendReset(b []byte, stream uint32, code http2.ErrCode) []byte {
	return binary.BigEndian.AppendUint32(appendFrame(b, 4, http2.FrameRSTStream, 0, stream), uint32(code))
}

// appendGoAway appends a GOAWAY: streams after last are not handled. why is for people.
func appendGoAway(b []byte, last uint32, code http2.ErrCode, why string) []byte {
	b = appendFrame(b, 8+len(why), http2.FrameGoAway, 0, 0)
	b = binary.BigEndian.AppendUint32(b, last)
	b = binary.BigEndian.AppendUint32(b, uint32(code))
	return append(b, why...)
}

// appendHeaders appends the frames of a header block: HEADERS, and CONTINUATION if the block does
// not fit into one frame.
func appendHeaders(b, block []byte, stream uint32, end bool, maxFrame int) []byte {
	kind, flags := http2.FrameHeaders, http2.Flags(0)
	if end {
		flags = http2.FlagHeadersEndStream
	}
	for {
		part := block
		if len(part) > maxFrame {
			part = part[:maxFrame]
		}
		if block = block[len(part):]; len(block) == 0 {
			flags |= http2.FlagHeadersEndHeaders
		}
		b = append(appendFrame(b, len(part), kind, flags, stream), part...)
		if len(block) == 0 {
			return b
		}
		kind, flags = http2.FrameContinuation, 0
	}
}
