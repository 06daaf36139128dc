package director

import (
	"context"

	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/codec"
)

// A Resync makes the messages that one client has missed in the endless stream of one backend,
// because the stream was not open. It gets and returns messages of the newest version of the API,
// with back names. One goroutine at a time calls its methods.
type Resync interface {
	// Begin notes what the backend has now. The Resync assumes that the client knows this.
	Begin(ctx context.Context, conn grpc.ClientConnInterface) error

	// Saw gets each message of the stream before the client does. If it fails, the client
	// does not get the message, and the director opens the stream again.
	Saw(message *codec.Frame) error

	// Look returns messages for everything that has happened at the backend and that the client
	// does not know from Begin, Saw or an earlier Look. The director passes the messages on even
	// if Look fails; a later Look then returns the rest.
	Look(ctx context.Context, conn grpc.ClientConnInterface) ([]*codec.Frame, error)

	// End returns messages that say that everything the client knows of is gone, because a
	// reload has taken the backend away.
	End() []*codec.Frame
}
