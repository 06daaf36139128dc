package director

import (
	"context"

	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/codec"
)

// A Recap tells one client what the endless stream of one backend did not tell it: what
// happened while the stream could not be opened, or had ended. It gets and makes messages
// of the newest version, with back names. One goroutine at a time calls it.
type Recap interface {
	// Begin takes all that there is at the backend for known to the client.
	Begin(ctx context.Context, conn grpc.ClientConnInterface) error

	// Saw is shown each message of the stream before the client gets it. After an error
	// the client does not get it, and the stream is opened again.
	Saw(message *codec.Frame) error

	// Look returns messages for all that has happened at the backend and that the client
	// was not told. With an error it returns those that it can: the rest comes with a
	// later Look. What the client was told before Begin it does not know.
	Look(ctx context.Context, conn grpc.ClientConnInterface) ([]*codec.Frame, error)

	// End returns messages for the end of all that the client was told of: the backend
	// has been taken away.
	End() []*codec.Frame
}
