package director

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/lastknown"
	"github.com/criproxy/criproxy/internal/profile"
	"github.com/criproxy/criproxy/rewrite"
)

// DefaultMaxMessage is the largest message in bytes that kubelet accepts and that containerd
// sends.
const DefaultMaxMessage = 16 << 20

// Config is what a [Director] is made of. It needs at least one backend. The director keeps
// the Config; the caller does not change what it points to.
type Config struct {
	// Profile describes the API. Nil describes nothing: every call goes to the first backend
	// as it is.
	Profile *Profile

	// Schema has the methods of the API's newest version. A Profile needs it.
	Schema *codec.Schema

	// Backends are the servers, the primary first. Only the primary may have no name.
	Backends []Backend

	// NewTo names the backend that gets the calls of methods which the profile marks as new,
	// if neither a name nor a chooser decides. Things that exist stay where they are. Empty
	// means the primary.
	NewTo string

	// Edits is the code that the profile names under edits. [New] and [Director.Reload] call
	// it once for each backend. A nil [Edit] leaves the fields of that backend alone.
	Edits map[string]func(EditContext) Edit

	// Merges is the code that the profile names where a method goes to all backends, besides
	// the built-in "concat", "mirror", "pages" and "endless".
	Merges map[string]Merge

	// Recaps is the code that the profile names under recap, for streams that do not end by
	// themselves. The director calls it once for each client and backend.
	Recaps map[string]func() Recap

	// LookInterval is how often the director calls the Look of a Recap whose backend has no
	// open stream. Zero means one second.
	LookInterval time.Duration

	// NativeNames leaves the names of kinds whose bare form is the primary's unchanged on
	// both sides. The director then looks up their owner in the memory of the backends, all
	// of which must have Known.
	NativeNames bool

	// Conversions is the code that the profile names under versions.convert.
	Conversions map[string]Conversion

	// Withheld is called when the director has removed a field from a request, as the
	// profile says under withhold: with the method, and the name that the field was meant
	// for. It must return at once. Optional.
	Withheld func(b Backend, method, name string)

	// Mended is called when the director has replaced text that is not UTF-8 in a backend's
	// part of a merged reply: with the method, and the field as "package.Message.field". It
	// must return at once. Optional.
	Mended func(b Backend, method, field string)

	// Mirrored is called when a backend has got a mirrored request, when the director gives
	// that up, and when the first attempt has failed. It must return at once. Optional.
	Mirrored func(Mirroring)

	// Panicked is called once for each panic in code that works on a call, in the goroutine
	// in which it happened: with what was being done, such as the method, what panic was
	// called with, and the stack. The call fails with Internal whether or not there is a
	// Panicked; the value may quote a message, and clients do not get it. Optional.
	Panicked func(doing string, value any, stack []byte)

	// Around returns a connection that stands between clients and the director and passes
	// calls on to it. The connection gets the methods of the newest version, as *codec.Frame,
	// with front names; it may answer, change or refuse calls. Optional.
	Around func(director grpc.ClientConnInterface) grpc.ClientConnInterface

	// Tracer sees the client's leg of each call; for those of a backend see [ConnConfig].
	// Optional.
	Tracer Tracer

	// MaxMessage bounds a merged reply, in bytes. A larger one fails with ResourceExhausted.
	// Zero means [DefaultMaxMessage].
	MaxMessage int
}

// A Backend is one of the servers behind a [Director].
type Backend struct {
	// Name is how clients name the backend, and what stands before its names in front. It
	// holds no white space, "/", ":", ",", "@", quotes or "__", and does not end in "_". Only
	// the primary's may be empty.
	Name string

	// Conn is the way to the backend. It gets the methods of the newest version, with
	// *codec.Frame messages; a [Conn] translates for servers that speak an older one. A
	// reload compares Conns with ==, so that a Conn is a pointer or another comparable type.
	Conn grpc.ClientConnInterface

	// Trusted backends get the fields that the profile withholds from others.
	Trusted bool

	// Known is the memory of the backend; nil means that there is none. [Remember] sets it.
	Known *lastknown.Conn

	// Maps are the tables for kinds of names that the profile says are mapped.
	Maps map[string]map[string]string // :: kind → front name → back name
}

// String returns the name that people see: "primary" for a primary without a name.
func (b Backend) String() string {
	if b.Name == "" {
		return "primary"
	}
	return b.Name
}

// An Edit appends the new content of a field, whose content was value, to dst and returns
// dst. The error [rewrite.ErrDrop] removes the field, any other fails the call. An Edit keeps
// neither slice, and is safe for concurrent use.
type Edit func(dst, value []byte) ([]byte, error)

// An EditContext is what an edit learns when it is made.
type EditContext struct {
	Backend  Backend
	Backends []Backend // all there are, the primary first
	Primary  bool      // the backend is the first
	// Front appends what a name of the backend looks like in front.
	Front func(dst []byte, kind string, name []byte) []byte
}

// A Merge makes one reply of those of all backends, the primary's first. It takes the replies
// over. Its error becomes that of the call. It is safe for concurrent use.
type Merge func(parts []Part) (*codec.Frame, error)

// A Part is what one backend answered to a call that went to all.
type Part struct {
	Backend    Backend
	Reply      *codec.Frame // with front names; nil if there was an error
	Remembered bool         // the backend did not answer: this is what it said last
	Err        error
}

// A Mirroring says how far the director is with a request that one backend has answered and
// another is to get as well.
type Mirroring struct {
	Backend  Backend // that is to get it
	Method   string
	Attempts int           // so far
	After    time.Duration // since the call of the client
	Err      error         // of the latest attempt; nil: the backend has taken the request
	Again    bool          // there will be another attempt
}

// A Conversion turns messages of an old version into those of the newest (Up) and back
// (Down). A nil one changes nothing.
type Conversion struct {
	Fields   []string // what it edits, as "Message.field"
	Up, Down rewrite.Edit
}

func (c *Config) check() error {
	if len(c.Backends) == 0 {
		return errors.New("backends: want at least one")
	}
	var errs []error
	seen := map[string]int{}
	for i, b := range c.Backends {
		if err := profile.CheckBackendName(b.Name); err != nil {
			errs = append(errs, fmt.Errorf("backends[%d]: %w", i, err))
		}
		if b.Name == "" && i > 0 {
			errs = append(errs, fmt.Errorf("backends[%d]: has no name; only the first one, the primary, may go without", i))
		}
		if j, twice := seen[b.Name]; twice && b.Name != "" {
			errs = append(errs, fmt.Errorf("backends[%d]: the name %q is already used by backends[%d]", i, b.Name, j))
		}
		seen[b.Name] = i
		if c.NativeNames && b.Known == nil {
			errs = append(errs, fmt.Errorf("backends[%d]: has no Known, which NativeNames need to find the owner of a name", i))
		}
	}
	if _, ok := seen[c.NewTo]; c.NewTo != "" && !ok {
		errs = append(errs, fmt.Errorf("NewTo is %q, which is no backend", c.NewTo))
	}
	return errors.Join(errs...)
}
