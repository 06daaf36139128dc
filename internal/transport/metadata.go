package transport

import (
	"encoding/base64"
	"strings"

	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/metadata"
)

const binarySuffix = "-bin" // ends the names of metadata whose values are bytes; they are sent in base64

// reserved reports whether a header field belongs to HTTP or to gRPC itself, and not to the metadata.
func reserved(name string) bool {
	if strings.HasPrefix(name, ":") {
		return true
	}
	switch name {
	case "content-type", "content-length", "user-agent", "te",
		"grpc-message-type", "grpc-encoding", "grpc-message", "grpc-status", "grpc-timeout",
		"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade": // HTTP/2 has none of these
		return true
	}
	return false
}

// A collector collects header fields into metadata. All values share one slice, so that a call needs two allocations for them.
type collector struct {
	md     metadata.MD // nil: there is none
	values []string
	most   int // about how many fields there are
}

// add adds a value. Each name gets one element of values without spare capacity, so that a second value of the name does not
// overwrite the first one of the next name.
func (c *collector) add(name, value string) {
	if c.md == nil {
		c.md, c.values = metadata.MD{}, make([]string, 0, c.most)
	}
	if there, ok := c.md[name]; ok {
		c.md[name] = append(there, value) // copies, because there has no spare capacity
		return
	}
	n := len(c.values)
	c.values = append(c.values, value)
	c.md[name] = c.values[n : n+1 : n+1]
}

// custom adds a field of custom metadata. It decodes the values of binary metadata.
func (c *collector) custom(f hpack.HeaderField) error {
	if !strings.HasSuffix(f.Name, binarySuffix) {
		c.add(f.Name, f.Value)
		return nil
	}
	for part := range strings.SplitSeq(f.Value, ",") { // a peer may join several values
		v, err := fromBase64(part)
		if err != nil {
			return err
		}
		c.add(f.Name, v)
	}
	return nil
}

// fromBase64 decodes a value with or without padding: gRPC's peers send either.
func fromBase64(s string) (string, error) {
	encoding := base64.RawStdEncoding
	if len(s)%4 == 0 { // s is padded, or needs no padding
		encoding = base64.StdEncoding
	}
	b, err := encoding.DecodeString(s)
	return string(b), err
}

// appendMetadata appends the fields of md, except those with reserved names, and those that HTTP/2 cannot carry: it
// calls lost with the names of the latter.
func appendMetadata(fields []field, md metadata.MD, lost func(name string)) []field {
	for name, values := range md {
		if reserved(name) {
			continue
		}
		if !sendable(name, values) {
			lost(name)
			continue
		}
		for _, v := range values {
			if strings.HasSuffix(name, binarySuffix) {
				v = base64.RawStdEncoding.EncodeToString([]byte(v))
			}
			fields = append(fields, field{name, v})
		}
	}
	return fields
}

// validMetadataName reports whether grpc-go accepts s as a name.
func validMetadataName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !('a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '.') {
			return false
		}
	}
	return s != ""
}

// notPrintable reports whether a value has a byte that gRPC's metadata may not have.
func notPrintable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return true
		}
	}
	return false
}

// isGRPC reports whether a content type is gRPC's, for any encoding of messages.
func isGRPC(contentType string) bool {
	rest, ok := strings.CutPrefix(contentType, grpcType)
	return ok && (rest == "" || rest[0] == '+' || rest[0] == ';')
}

// replyType returns the content type of the reply to a request with the given content type.
func replyType(contentType string) string {
	if len(contentType) <= len(grpcType)+1 {
		return grpcType
	}
	return grpcType + "+" + contentType[len(grpcType)+1:]
}

const grpcType = "application/grpc"
