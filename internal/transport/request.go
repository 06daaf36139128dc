package transport

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// A request is the header block that begins a call, parsed. It may be one that no gRPC client sends: what is wrong with it is in
// the fields, and reject decides. The goroutine that reads the connection makes it; then it does not change, and has no bytes of
// the connection's buffer.
type request struct {
	verb, scheme, path, authority string
	contentType, encoding         string
	hosts                         int // fields named host
	host                          string
	timeout                       time.Duration
	timed                         bool // there is a timeout
	length                        int  // from content-length; -1: there is none
	tooLong                       bool
	unknown                       string // a pseudo-header field that requests do not have
	wrong                         string // what is wrong with a field that gRPC defines
	md                            collector
}

// newRequest parses a header block. It keeps only strings of h.
func newRequest(h *headerBlock) request {
	r := request{length: -1, tooLong: h.tooLong, md: collector{most: len(h.fields)}}
	for _, f := range h.fields {
		switch f.Name {
		case ":method":
			r.verb = f.Value
		case ":scheme":
			r.scheme = f.Value
		case ":path":
			r.path = f.Value
		case ":authority":
			r.authority = f.Value
		case "host":
			r.hosts++
			r.host = f.Value
		case "content-type":
			if r.contentType = f.Value; isGRPC(f.Value) {
				r.md.add(f.Name, f.Value)
			}
		case "grpc-encoding":
			r.encoding = f.Value
		case "grpc-timeout":
			var err error
			r.timed = true
			if r.timeout, err = decodeTimeout(f.Value); err != nil {
				r.wrong = "malformed grpc-timeout: " + err.Error()
			}
		case "content-length":
			if n, err := strconv.ParseUint(f.Value, 10, 31); err == nil {
				r.length = int(n)
			}
			r.md.add(f.Name, f.Value)
		case "user-agent":
			r.md.add(f.Name, f.Value)
		default:
			if f.IsPseudo() {
				r.unknown = f.Name
			} else if !reserved(f.Name) {
				if err := r.md.custom(f); err != nil {
					r.wrong = fmt.Sprintf("malformed binary metadata %q in header %q: %v", f.Value, f.Name, err)
				}
			}
		}
	}
	return r
}

// malformed returns why the request is malformed by RFC 9113, section 8.1.1, or "" if it is not.
func (r *request) malformed() string {
	switch {
	case r.tooLong: // missing fields may have been cut off
		return ""
	case r.unknown != "":
		return "a request with the pseudo-header " + r.unknown
	case r.verb == "" || r.scheme == "" || r.path == "":
		return "a request without :method, :scheme, or :path"
	}
	return ""
}

// A rejection is the answer to a request that reaches no handler.
type rejection struct {
	http   int
	status *status.Status
	text   bool // answer in plain text too: the client does not speak gRPC, such as a browser
}

// reject returns the answer to a valid HTTP/2 request that is not a valid gRPC call, or nil if it
// is one.
func (r *request) reject() *rejection {
	no := func(http int, code codes.Code, format string, args ...any) *rejection {
		return &rejection{http: http, status: status.Newf(code, format, args...)}
	}
	switch {
	case r.tooLong:
		return no(http.StatusRequestHeaderFieldsTooLarge, codes.ResourceExhausted, "the metadata of the call is longer than the server takes")
	case r.hosts > 1:
		return no(http.StatusBadRequest, codes.Internal, "the request has %d hosts", r.hosts)
	case !isGRPC(r.contentType):
		st := status.Newf(codes.InvalidArgument, "invalid gRPC request content-type %q", r.contentType)
		return &rejection{http.StatusUnsupportedMediaType, st, true}
	case r.wrong != "":
		return no(http.StatusBadRequest, codes.Internal, "%s", r.wrong)
	case r.authority == "" && r.host == "":
		return no(http.StatusBadRequest, codes.Internal, "no host or :authority header present")
	case r.verb != http.MethodPost:
		return no(http.StatusMethodNotAllowed, codes.Internal, "Received a HEADERS frame with :method %q which should be POST", r.verb)
	case r.timed && r.timeout <= 0:
		return no(http.StatusOK, codes.DeadlineExceeded, "%v", context.DeadlineExceeded)
	case r.path[0] != '/' || strings.LastIndexByte(r.path, '/') == 0:
		return no(http.StatusOK, codes.Unimplemented, "malformed method name: %q", r.path)
	}
	return nil
}

// metadata returns the metadata that the handler sees.
func (r *request) metadata() metadata.MD {
	if authority := cmp.Or(r.authority, r.host); authority != "" {
		r.md.add(":authority", authority)
	}
	return r.md.md
}
