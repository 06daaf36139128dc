package lastknown

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/recovery"
)

// A Policy says what a backend that is down means for lists.
type Policy string

// The policies.
const (
	// LastKnown keeps the backend's items, and answers its status calls.
	LastKnown Policy = "last-known"
	// Fail fails every list, of all backends.
	Fail Policy = "fail"
	// Skip leaves the backend's items out, as the original CRI Proxy did. kubelet
	// kills pods that it does not see.
	Skip Policy = "skip"
)

// The defaults of a [Config].
const (
	DefaultBudget   = 2 * time.Second
	DefaultSilence  = 10 * time.Second
	DefaultInterval = time.Second
	DefaultMaxBytes = 64 << 20
)

// HeaderKey is the key of the header that marks an answer from memory. Its value
// is the backend's name.
const HeaderKey = "criproxy-last-known"

// Config is what a [Conn] is made of.
type Config struct {
	Name string                   // for errors; what people call the backend
	Conn grpc.ClientConnInterface // the way to the backend; takes *codec.Frame

	Schema  *codec.Schema
	Package string // of the methods that Spec names
	Spec    Spec

	// Equivalents returns all names by which the thing with this name may be
	// listed, itself included. Optional.
	Equivalents func(name string) []string

	// Memory is what is remembered of the backend, by this connection and by those
	// before and after it. Nil: nothing yet.
	Memory *Memory

	// Policy is what being gone means. Empty means LastKnown.
	Policy Policy

	// Primary is for the backend without which there is no node: it is never left out of
	// a list, and what it alone can say is never told from memory.
	Primary bool

	// Absent reports whether nobody listens where the backend should be, now. That, of a
	// backend that has not been seen since the machine was booted, is the evidence that
	// it has nothing, and lists leave it out. Nil: there is no such evidence.
	Absent func(context.Context) bool

	// Required makes lists wait for a backend even if it is absent, for up to
	// RequiredWait, and then fail.
	Required     bool
	RequiredWait time.Duration // zero means Silence

	// Budget is how long an answer may take before memory answers in its place, zero
	// DefaultBudget. Silence is how long a backend may answer nothing at all before it
	// is gone, zero DefaultSilence. Interval is how often a backend that no client asks is
	// asked, zero DefaultInterval.
	Budget   time.Duration
	Silence  time.Duration
	Interval time.Duration

	// Alive is a unary method that a backend answers quickly whatever else it does:
	// full name. It tells a backend that is slow from one that is gone. Optional: the
	// lists do.
	Alive string

	// MaxBytes bounds what is kept in memory, zero DefaultMaxBytes.
	MaxBytes int

	// Watch is called by Run for each change of state, one after another. A Watch that
	// blocks holds up nothing but the next call of Watch. Optional.
	Watch func(State)

	// Remembered is called for each answer from memory, with the method's full name. It
	// must return at once. Optional.
	Remembered func(method string)

	// Room takes memory for n bytes of a list from memory, with which the call of a context
	// is answered. It must not wait; its error ends the call. Optional: there is enough.
	Room func(ctx context.Context, n int) error

	// Panicked is called for each panic behind the scenes. Optional.
	Panicked recovery.Hook
}
