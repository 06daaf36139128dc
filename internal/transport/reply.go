package transport

import (
	"fmt"
	"strconv"

	"google.golang.org/grpc/codes"
)

// A reply is a header block of the reply to a call, parsed: the response headers or the trailers. wrong says what is wrong with
// a field that gRPC defines, and wrongCode is the code of the call then.
type reply struct {
	http, contentType, encoding, message string
	code                                 codes.Code
	wrong                                string
	wrongCode                            codes.Code
	md                                   collector
}

// CutMark ends the text of a status that was too long.
const CutMark = " ... (cut by criproxy)"

// newReply parses a header block. It keeps only strings of h. Of the fields that HTTP or gRPC uses itself, only content-type and
// user-agent become metadata, as with grpc-go.
func newReply(h *headerBlock) reply {
	r := reply{code: codes.Unknown, md: collector{most: len(h.fields)}}
	for _, f := range h.fields {
		switch f.Name {
		case "content-type":
			if r.contentType = f.Value; isGRPC(f.Value) {
				r.md.add(f.Name, f.Value)
			}
		case "grpc-encoding":
			r.encoding = f.Value
		case "grpc-status":
			n, err := strconv.ParseInt(f.Value, 10, 32)
			if err != nil {
				r.wrong, r.wrongCode = fmt.Sprintf("transport: malformed grpc-status: %v", err), codes.Unknown
			}
			r.code = codes.Code(uint32(n))
		case "grpc-message":
			if r.message = DecodeMessage(f.Value); h.cut {
				r.message += CutMark
			}
		case ":status":
			r.http = f.Value
		default:
			if f.Name == "user-agent" || !reserved(f.Name) {
				if err := r.md.custom(f); err != nil {
					r.wrong, r.wrongCode = fmt.Sprintf("transport: malformed %s: %v", f.Name, err), codes.Internal
				}
			}
		}
	}
	return r
}

// typeError says that a reply is not gRPC's.
func (r *reply) typeError() string {
	if r.contentType == "" {
		return "malformed header: missing HTTP content-type"
	}
	return fmt.Sprintf("transport: received unexpected content-type %q", r.contentType)
}
