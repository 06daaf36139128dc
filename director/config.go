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

// DefaultMaxMessage is the largest message, in bytes, that kubelet takes, and
// that containerd sends.
const DefaultMaxMessage = 16 << 20

// Config is what a [Director] is made of. The zero value is not useful: it needs
// at least one backend.
type Config struct {
	// Profile describes the API. Nil means that nothing is described: every call
	// goes to the first backend as it is.
	Profile *Profile

	// Schema knows the methods of the API's newest version.
	Schema *codec.Schema

	// Backends, the primary first. Only the primary may be without a name.
	Backends []Backend

	// NewTo is the name of the backend that gets calls which make something new, where
	// nothing says whose they are: those of methods that are new in the profile. What
	// there is already stays where it is. Empty means the primary.
	NewTo string

	// Edits is the code that the profile names under edits. It is called once
	// for each backend; a nil [Edit] is one with nothing to do.
	Edits map[string]func(EditContext) Edit

	// Merges is the code that the profile names where a method goes to all
	// backends, besides "concat".
	Merges map[string]Merge

	// Recaps is the code that the profile names under recap, where a stream does not end
	// by itself. It is called once for each client and backend.
	Recaps map[string]func() Recap

	// LookInterval is how often a Recap looks at a backend whose stream is not open. Zero
	// means one second.
	LookInterval time.Duration

	// NativeNames leaves names of kinds whose bare form is the primary's as they
	// are on both sides. Whose they are is then looked up in what is known of the
	// backends, all of which must have Known.
	NativeNames bool

	// Conversions is the code that the profile names under versions.
	Conversions map[string]Conversion

	// Withheld is told when something was withheld from a backend: the method, and
	// the name it was meant for. It must return at once. Optional.
	Withheld func(b Backend, method, name string)

	// Mended is told when text of a backend that is no UTF-8 was replaced, for it to become
	// a part of a reply: the method, and the field as "package.Message.field". It must
	// return at once. Optional.
	Mended func(b Backend, method, field string)

	// Panicked is called once for each panic in code that works on a call, in the goroutine
	// in which it happened: with what was being done, such as the method, what panic was
	// called with, and the stack. The call fails with Internal whether or not there is a
	// Panicked; the value may quote a message, and clients do not get it. Optional.
	Panicked func(doing string, value any, stack []byte)

	// Around returns a connection that stands between clients and the director, and
	// passes calls on to it. It gets the methods of the newest version, as
	// *codec.Frame, with front names, and may answer, change or refuse them. Optional.
	Around func(director grpc.ClientConnInterface) grpc.ClientConnInterface

	// Tracer is shown the legs of clients. Optional.
	Tracer Tracer

	// MaxMessage bounds a merged reply, in bytes. Zero means [DefaultMaxMessage].
	MaxMessage int
}

// A Backend is one of the servers behind a [Director].
type Backend struct {
	// Name is how clients name it, and what stands before its names in front.
	// See [CheckName].
	Name string

	// Conn is the way to it. It gets the methods of the newest version, and
	// *codec.Frame messages; a [Conn] translates for servers that speak an older one.
	// Two are compared by a reload: it is a pointer, or whatever else can be.
	Conn grpc.ClientConnInterface

	// Trusted backends get what the profile withholds from others.
	Trusted bool

	// Known is the memory of the backend; nil means that there is none. [Remember] sets it.
	Known *lastknown.Conn

	// Maps are the tables for kinds of names that the profile says are mapped.
	Maps map[string]map[string]string // :: kind → front name → back name
}

// String is the name by which people know the backend.
func (b Backend) String() string {
	if b.Name == "" {
		return "primary"
	}
	return b.Name
}

// An Edit appends the new content of a field, whose content was value, to dst. Its
// error [rewrite.ErrDrop] removes the field.
type Edit func(dst, value []byte) ([]byte, error)

// An EditContext is what an edit may know when it is made.
type EditContext struct {
	Backend  Backend
	Backends []Backend // all there are, the primary first
	Primary  bool      // the backend is the first
	// Front appends what a name of the backend looks like in front.
	Front func(dst []byte, kind string, name []byte) []byte
}

// A Merge makes one reply of those of all backends, the primary's first. It takes
// the replies over. Its error is that of the call.
type Merge func(parts []Part) (*codec.Frame, error)

// A Part is what one backend answered to a call that went to all.
type Part struct {
	Backend    Backend
	Reply      *codec.Frame // with front names; nil if there was an error
	Remembered bool         // the backend is gone: this is what it said last
	Err        error
}

// A Conversion turns messages of an old version into those of the newest (Up)
// and back (Down). Either may be nil, where nothing is to be done.
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
			errs = append(errs, fmt.Errorf("backends[%d]: names that say nothing about their backend need a memory of it", i))
		}
	}
	if _, ok := seen[c.NewTo]; c.NewTo != "" && !ok {
		errs = append(errs, fmt.Errorf("new things are for %q, which is no backend", c.NewTo))
	}
	return errors.Join(errs...)
}
