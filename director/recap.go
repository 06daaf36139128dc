package director

import (
	"context"

	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/codec"
)

// A Recap makes up the messages that one client missed of the endless stream of one backend,
// while that stream could not be opened or had ended. It gets and makes messages of the
// newest version, with back names. One goroutine at a time calls it.
type Recap interface {
	// Begin notes what the backend has now, which the client is taken to know.
	Begin(ctx context.Context, conn grpc.ClientConnInterface) error

	// Saw gets each message of the stream before the client does. After an error the client
	// does not get the message, and the director opens the stream again.
	Saw(message *codec.Frame) error

	// Look returns messages for all that has happened at the backend since Begin and that the
	// client was not told. With an error it returns those that it can make; a later Look
	// returns the rest.
	Look(ctx context.Context, conn grpc.ClientConnInterface) ([]*codec.Frame, error)

	// End returns messages that end all that the client was told of, because a reload has
	// taken the backend away.
	End() []*codec.Frame
}
