package transport

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	spb "google.golang.org/genproto/googleapis/rpc/status"
)

// StatusOf returns the status of an error, nil if that is nil. The error of a context that has ended has the
// code for that; any other error without a status is Unknown.
func StatusOf(err error) *status.Status {
	if err == nil {
		return nil
	}
	if st, ok := status.FromError(err); ok {
		return st
	}
	return status.FromContextError(err)
}

// contextError returns the error of a call whose context has ended.
func contextError(ctx context.Context) error { return status.FromContextError(ctx.Err()).Err() }

// deadlineSkew is how long before its deadline the context of a call may be canceled, and the call
// still counts as timed out. A client that gives up at its deadline cancels the call a moment before we
// notice the deadline, which begins for us when the request arrives.
const deadlineSkew = 50 * time.Millisecond

// TimedOut returns the error of a call with context ctx: DeadlineExceeded in place of Canceled if the
// context ended at the deadline. Servers may only say Canceled then: grpc-go cancels the context with a
// timer of its own, and clients cancel the call at the deadline. Other errors pass as they are.
func TimedOut(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil || StatusOf(err).Code() != codes.Canceled {
		return err
	}
	if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > deadlineSkew {
		return err
	}
	return status.FromContextError(context.DeadlineExceeded).Err()
}

const detailsField = "grpc-status-details-bin"

// Details encodes a status that has details, and returns nil for others.
func Details(st *status.Status) []byte {
	if p := st.Proto(); len(p.GetDetails()) > 0 {
		if b, err := proto.Marshal(p); err == nil { // cannot fail: the details were decoded from the wire or made of messages
			return b
		}
	}
	return nil
}

// newStatus returns the status that trailers hold. The details hold the same status again, with the
// fields that have no trailer.
func newStatus(code codes.Code, message string, details []string) *status.Status {
	if code == codes.OK && message == "" && len(details) == 0 {
		return nil // which is OK
	}
	p := &spb.Status{}
	if len(details) != 1 || proto.Unmarshal([]byte(details[0]), p) != nil {
		return status.New(code, message)
	}
	if codes.Code(p.GetCode()) != code {
		return status.Newf(codes.Internal, "grpc-status-details-bin mismatch: grpc-status=%v, grpc-message=%q, grpc-status-details-bin=%v", code, message, p)
	}
	return status.FromProto(p)
}

// statusOfHTTP returns the status code of a reply that is not gRPC. Such a reply usually comes from
// another proxy on the way to the server.
func statusOfHTTP(code int) codes.Code {
	switch code {
	case http.StatusBadRequest:
		return codes.Internal
	case http.StatusUnauthorized:
		return codes.Unauthenticated
	case http.StatusForbidden:
		return codes.PermissionDenied
	case http.StatusNotFound:
		return codes.Unimplemented
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return codes.Unavailable
	}
	return codes.Unknown
}

// EncodeMessage percent-encodes the message of a status for a header field: every byte that is not
// printable ASCII, and the percent sign.
func EncodeMessage(s string) string {
	for i := range len(s) {
		if plain(s[i]) {
			continue
		}
		b := strings.Builder{}
		for _, r := range s { // U+FFFD for each byte that is not UTF-8
			for _, c := range utf8.AppendRune(nil, r) {
				if plain(c) {
					b.WriteByte(c)
				} else {
					fmt.Fprintf(&b, "%%%02X", c)
				}
			}
		}
		return b.String()
	}
	return s
}

// cutMessage returns at most n bytes of an encoded message that is longer, without half of an escape or of a character at
// its end. Some servers send characters that are not escaped.
func cutMessage(s string, n int) string {
	if i := strings.LastIndexByte(s[max(0, n-2):n], '%'); i >= 0 {
		n = max(0, n-2) + i
	}
	for range utf8.UTFMax - 1 {
		switch { // while the next byte goes on with a character
		case n >= 3 && len(s) > n+1 && s[n] == '%' && strings.IndexByte("89ABab", s[n+1]) >= 0:
			n -= 3
		case n >= 1 && !utf8.RuneStart(s[n]):
			n--
		}
	}
	return s[:n]
}

// plain reports whether grpc-message may have a byte as it is.
func plain(c byte) bool { return c >= ' ' && c <= '~' && c != '%' }

// DecodeMessage undoes EncodeMessage. It leaves invalid escapes as they are.
func DecodeMessage(s string) string {
	if !strings.Contains(s, "%") {
		return s
	}
	b := strings.Builder{}
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+3], 16, 8); err == nil {
				b.WriteByte(byte(c))
				i += 2
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// timeoutUnits are the units of grpc-timeout, the finest first.
var timeoutUnits = []struct {
	letter byte
	unit   time.Duration
}{
	{'n', time.Nanosecond}, {'u', time.Microsecond}, {'m', time.Millisecond},
	{'S', time.Second}, {'M', time.Minute}, {'H', time.Hour},
}

// EncodeTimeout encodes a grpc-timeout in the finest unit in which it has at most 8 digits, rounded
// up.
func EncodeTimeout(d time.Duration) string {
	d = max(d, 0)
	for _, u := range timeoutUnits {
		n := int64(d / u.unit)
		if d%u.unit > 0 {
			n++
		}
		if n < 1e8 || u.letter == 'H' {
			return strconv.FormatInt(n, 10) + string(u.letter)
		}
	}
	panic("unreachable: hours fit")
}

// decodeTimeout decodes a grpc-timeout.
func decodeTimeout(s string) (time.Duration, error) {
	if len(s) < 2 {
		return 0, fmt.Errorf("transport: timeout string is too short: %q", s)
	}
	if len(s) > 9 {
		return 0, fmt.Errorf("transport: timeout string is too long: %q", s)
	}
	for _, u := range timeoutUnits {
		if u.letter != s[len(s)-1] {
			continue
		}
		n, err := strconv.ParseUint(s[:len(s)-1], 10, 64)
		if err != nil {
			return 0, err
		}
		if n > math.MaxInt64/uint64(u.unit) {
			return math.MaxInt64, nil
		}
		return time.Duration(n) * u.unit, nil
	}
	return 0, fmt.Errorf("transport: timeout unit is not recognized: %q", s)
}
