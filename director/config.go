package director

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/profile"
	"github.com/criproxy/criproxy/rewrite"
)

// DefaultMaxMessage is 16 MiB, in bytes: what k8s.io/cri-client accepts.
const DefaultMaxMessage = 16 << 20

// A Config says which backends a [Director] has, and what their API is. It needs at least one
// backend. The director keeps the Config, and the caller must not change what it points to.
//
// Several goroutines call the functions and interfaces in it at once.
type Config struct {
	// Profile describes the API. If it is nil, every call goes to the first backend as it is.
	Profile *Profile

	// Schema has the methods of the API's newest version. A Profile needs it.
	Schema *codec.Schema

	// Backends are the servers, the primary first. Only the primary may have an empty name.
	Backends []Backend

	// NewTo names the backend for the calls of methods that the profile marks as new, if neither
	// a name in the request nor a chooser decides. Calls about existing objects go where the
	// objects are. Empty means the primary.
	NewTo string

	// Edits are the functions that the profile names under edits. [New] and [Director.Reload]
	// call each once for every backend. If it returns nil, the fields of that backend stay as
	// they are.
	Edits map[string]func(EditContext) Edit

	// Merges are the functions that the profile may name under all, in addition to the built-in
	// "concat", "mirror", "pages" and "endless".
	Merges map[string]Merge

	// Resyncs are the functions that the profile names under resync, for endless streams. The
	// director calls one for each backend in each stream of a client.
	Resyncs map[string]func() Resync

	// LookInterval is how often the director calls the Look of a Resync whose backend has no
	// open stream. Zero means one second.
	LookInterval time.Duration

	// NativeNames leaves names as the backends made them, without prefixes. It applies to the
	// kinds of names of which the profile says "bare: primary". The director then looks up the
	// owner of a name in the caches of the backends, so every Backend must have Known.
	NativeNames bool

	// Conversions are the conversions that the profile names under versions.convert.
	Conversions map[string]Conversion

	// Withheld is called when the director has removed a field from a request for b, as the
	// profile says under withhold. It gets the method, and the name for which the client sent
	// the field. It must return at once. Optional.
	Withheld func(b Backend, method, name string)

	// Mended is called when the director has replaced text that is not UTF-8 in b's part of a
	// merged reply. It gets the method, and the field as "package.Message.field". It must return
	// at once. Optional.
	Mended func(b Backend, method, field string)

	// Mirrored is called when the first attempt to mirror a request has failed, and at the end:
	// when the backend has answered the request, or the director has given up. It must return at
	// once. Optional.
	Mirrored func(Mirroring)

	// Panicked is called once for each panic in code that works on a call, in the goroutine that
	// panicked. It gets what the code was doing, such as the method of the call, the value of the
	// panic, and the stack. The call fails with Internal whether or not there is a Panicked. Its
	// client does not get the value, which may quote a message. Optional.
	Panicked func(doing string, value any, stack []byte)

	// Around returns a connection that gets the calls of clients in place of the director, and
	// passes them on to it. The connection gets the methods of the newest version, with messages
	// of type *codec.Frame and front names. It may answer, change or refuse a call. Only [New]
	// calls Around. Optional.
	Around func(director grpc.ClientConnInterface) grpc.ClientConnInterface

	// Pass passes the messages of a stream both ways, for streams that the profile does not describe
	// and those on which clients send several messages: from ss to a call on conn with context ctx, and
	// back. It returns the error with which the call ends. Nil means the director's own way.
	Pass func(ctx context.Context, conn grpc.ClientConnInterface, ss grpc.ServerStream) error

	// Tracer sees the client's leg of each call. The Tracer in package dial sees the legs of a
	// backend. Optional.
	Tracer Tracer

	// MaxMessage bounds a merged reply, in bytes. A larger one fails with ResourceExhausted.
	// Zero means [DefaultMaxMessage].
	MaxMessage int
}

// A Backend is one of the servers behind a [Director]. The caller owns its connection and its cache, and keeps both until no call
// uses them any more. After [Director.Reload], calls that are under way still use the backends of before.
type Backend struct {
	// Name is the prefix of the backend's names in front, and the name by which requests choose
	// the backend. It must not contain white space, "/", ":", ",", "@", quotes or "__", or end
	// in "_". Only the primary's may be empty.
	Name string

	// Conn is the connection to the backend: that of package dial, or any other. It gets the
	// methods of the newest version, with messages of type *codec.Frame; that of package dial
	// converts them for a server that has an older version. [Director.Reload] compares Conns
	// with ==, so the type must be comparable, such as a pointer. A Conn that can go on to another
	// connection may have a method Generation() uint64: Reload also compares what that returns.
	Conn grpc.ClientConnInterface

	// Trusted has the director send the backend also the fields that the profile withholds.
	Trusted bool

	// Known is the cache of the backend, which [Remember] makes. Nil means that the backend has
	// no cache.
	Known *Memory

	// Maps are the tables that translate names, for kinds that the profile says are mapped.
	Maps map[string]map[string]string // :: kind → front name → back name
}

// String returns the name of the backend for people: "primary" for a primary without a name.
func (b Backend) String() string {
	if b.Name == "" {
		return "primary"
	}
	return b.Name
}

// An Edit appends to dst the new content of a field of a reply, whose content was value, and
// returns dst. The error [rewrite.ErrDrop] removes the field; any other error fails the call. An
// Edit must not keep dst or value, and must be safe for concurrent use.
type Edit func(dst, value []byte) ([]byte, error)

// An EditContext says for which backend an [Edit] is made.
type EditContext struct {
	Backend  Backend
	Backends []Backend // all backends, the primary first
	Primary  bool      // Backend is the primary
	// Front appends the front name of a back name of the backend, and returns dst.
	Front func(dst []byte, kind string, name []byte) []byte
}

// A Merge makes one reply of the replies of all backends, the primary's first. It takes ownership
// of their frames. If it fails, the call fails with its error. It must be safe for concurrent use.
type Merge func(parts []Part) (*codec.Frame, error)

// A Part is the answer of one backend to a call that went to several.
type Part struct {
	Backend    Backend
	Reply      *codec.Frame // with front names; nil if Err is not
	Remembered bool         // the backend did not answer: Reply comes from its cache
	Err        error
}

// A Mirroring reports on a request that the director mirrors: the primary answers the client, and
// Backend gets the request as well.
type Mirroring struct {
	Backend  Backend
	Method   string
	Attempts int           // so far
	After    time.Duration // since the call of the client
	Err      error         // of the latest attempt; nil if it succeeded
	Again    bool          // there will be another attempt
}

// A Conversion converts messages of an older version of the API to the newest one with Up, and
// back with Down. Either may be nil, and then changes nothing.
type Conversion struct {
	Fields   []string // the fields that Up and Down edit, as "Message.field"; the first has class 1, and so on
	Up, Down rewrite.Edit
}

// check finds the mistakes in what needs no schema.
func (c *Config) check() error {
	if len(c.Backends) == 0 {
		return errors.New("backends: want at least one")
	}
	var errs []error
	places := map[string]int{}
	for i, b := range c.Backends {
		if err := profile.CheckBackendName(b.Name); err != nil {
			errs = append(errs, fmt.Errorf("backends[%d]: %w", i, err))
		}
		if b.Name == "" && i > 0 {
			errs = append(errs, fmt.Errorf("backends[%d]: has no name; only the first backend, the primary, may have none", i))
		}
		if j, twice := places[b.Name]; twice && b.Name != "" {
			errs = append(errs, fmt.Errorf("backends[%d]: the name %q is already used by backends[%d]", i, b.Name, j))
		}
		places[b.Name] = i
		if c.NativeNames && b.Known == nil {
			errs = append(errs, fmt.Errorf("backends[%d]: has no Known, which NativeNames needs to find the owner of a name", i))
		}
	}
	if _, ok := places[c.NewTo]; c.NewTo != "" && !ok {
		errs = append(errs, fmt.Errorf("NewTo: unknown backend %q", c.NewTo))
	}
	return errors.Join(errs...)
}
