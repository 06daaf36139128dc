package transport

import (
	"maps"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
	"google.golang.org/grpc/metadata"
)

// A Loss is a field of metadata that does not reach the next hop as it came. The call goes on without it.
type Loss struct {
	Method string // full name
	Field  string // its name
	Reply  bool   // it came with the reply; otherwise with the request
	Why    string // LossBytes or LossSize
}

// The reasons of a Loss.
const (
	LossBytes = "bytes" // the next hop's library, or HTTP/2, refuses a byte of its name or value
	LossSize  = "size"  // it does not fit into the header list; the text of a status is cut instead
)

// ViaField is the field of a request that has a value for each proxy that the call has come through.
const ViaField = "criproxy-hop"

// Hop reports whether a field describes one connection, or one message on it, and not the call. A proxy does not
// pass such fields on: the next hop has its own.
func Hop(name string) bool {
	switch name {
	case "connection", "content-length", "date", "expect", "grpc-accept-encoding", "host", "http2-settings",
		"keep-alive", "te", "trailer", "transfer-encoding", "upgrade":
		return true
	}
	return strings.HasPrefix(name, "proxy-")
}

// EndToEnd returns md without the fields that describe a connection. It returns md itself if there are none.
func EndToEnd(md metadata.MD) metadata.MD {
	return only(md, nil, func(name string, _ []string) bool { return !Hop(name) })
}

// SaysMore reports whether the header of an answer holds more than the content type, which every server sets.
func SaysMore(header metadata.MD) bool {
	_, usual := header["content-type"]
	return len(header) > 1 || len(header) == 1 && !usual
}

// Printable returns the fields of md that grpc-go accepts from its callers, and calls lost for each other one. It
// returns md itself if grpc-go accepts all of them. lost may be nil.
//
// grpc-go is stricter with its callers than with its peers: what has come over the wire need not be printable.
func Printable(md metadata.MD, lost func(name string)) metadata.MD {
	return only(md, lost, func(name string, values []string) bool {
		return validMetadataName(name) && (strings.HasSuffix(name, binarySuffix) || !slices.ContainsFunc(values, notPrintable))
	})
}

// Sendable returns the fields of md that HTTP/2 can carry, and calls lost for each other one. It returns md itself if
// that is all of them. lost may be nil.
func Sendable(md metadata.MD, lost func(name string)) metadata.MD { return only(md, lost, sendable) }

// sendable reports whether HTTP/2 can carry a field. The values of a binary one are encoded, and so may have any bytes.
func sendable(name string, values []string) bool {
	return validName(name) && (strings.HasSuffix(name, binarySuffix) || !slices.ContainsFunc(values, func(v string) bool { return !httpguts.ValidHeaderFieldValue(v) }))
}

// only returns the fields of md that fits accepts, and md itself if it accepts all. The values are those of md.
func only(md metadata.MD, lost func(name string), fits func(name string, values []string) bool) metadata.MD {
	var some metadata.MD
	for name, values := range md {
		if strings.HasPrefix(name, ":") || fits(name, values) {
			continue // pseudo-header fields are never sent
		}
		if some == nil {
			some = maps.Clone(md)
		}
		delete(some, name)
		if lost != nil {
			lost(name)
		}
	}
	if some == nil {
		return md
	}
	return some
}
