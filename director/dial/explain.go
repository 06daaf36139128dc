package dial

import (
	"errors"
	"net"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/transport"
)

// explain names the backend in errors that gRPC made on this side because it could not reach the
// backend. It also turns an Unimplemented into Unavailable if the backend was restarted during
// the call, perhaps as another version. Any other error of the backend passes as it is.
func (c *Conn) explain(w wording, err error, header, trailer metadata.MD) error {
	switch status.Code(err) {
	case codes.Unavailable:
		if len(header)+len(trailer) > 0 {
			return err // something came from the backend
		}
		why := errors.New(status.Convert(err).Message())
		if e := c.dialError.Load(); e != nil && *e != nil {
			why = *e // the cause, which gRPC wraps twice
		} else if silent := new(transport.SilentError); errors.As(c.failure(), &silent) {
			why = silent
		}
		return &unreachableError{status.Newf(codes.Unavailable, "criproxy: backend %s %v", director.Backend{Name: c.name}, c.unreachable(why))}
	case codes.Unimplemented:
		// Clients take Unimplemented as final, and never call the method again.
		if w.spoken != nil && w.spoken.dials != c.dials.Load() {
			return status.Errorf(codes.Unavailable, "criproxy: backend %s was restarted during the call, maybe as another version; try again", c)
		}
	case codes.ResourceExhausted:
		if msg := status.Convert(err).Message(); strings.HasPrefix(msg, "grpc: received message larger than max") {
			return status.Errorf(codes.ResourceExhausted, "criproxy: a message of backend %s is over the limit of %d bytes: %s", c, c.maxMessage, msg)
		}
	}
	return err
}

// unreachable returns the error about a backend that cannot be reached: one text for calls and for its condition.
func (c *Conn) unreachable(why error) error {
	if silent := new(transport.SilentError); errors.As(why, &silent) {
		return silent
	}
	var op *net.OpError
	if errors.As(why, &op) && op.Addr != nil && op.Addr.String() == c.address {
		why = op.Err // without the address, which c names already
	}
	return backend.UnreachedError(c.address, why)
}

// unreachableError is the status of a call whose backend could not be reached. Its method
// Unreachable distinguishes it from an Unavailable that the backend sent.
type unreachableError struct{ *status.Status }

func (e *unreachableError) Error() string              { return e.Err().Error() }
func (e *unreachableError) GRPCStatus() *status.Status { return e.Status }
func (e *unreachableError) Unreachable() bool          { return true }
