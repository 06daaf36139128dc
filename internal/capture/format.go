package capture

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/criproxy/criproxy/codec"
)

// A Format is how events are written. docs/capture.md describes each.
type Format string

// The formats.
const (
	JSONL  Format = "jsonl"  // one JSON object a line, messages decoded
	PCAPNG Format = "pcapng" // for Wireshark: calls as HTTP/2 over TCP
	Binlog Format = "binlog" // grpc.binarylog.v1.GrpcLogEntry
)

// Formats are all of them.
var Formats = []Format{JSONL, PCAPNG, Binlog}

// FormatOf returns the format that the ending of a file's name stands for.
func FormatOf(path string) (Format, error) {
	for _, f := range Formats {
		if strings.HasSuffix(path, "."+string(f)) {
			return f, nil
		}
	}
	return "", fmt.Errorf("%s: the ending of the name says how to write: want .jsonl, .pcapng or .binlog", filepath.Base(path))
}

// Version is that of the formats. A reader takes files of its own version and
// older.
const Version = 1

// A FileHeader says where the events of a file come from. It is the first line
// of JSON lines, and stands in a comment or an entry of its own in other formats.
type FileHeader struct {
	Version   int             `json:"v"`
	Program   string          `json:"program,omitempty"`
	Created   time.Time       `json:"created"`
	Listen    string          `json:"listen,omitempty"`     // the socket of the clients
	Backends  []HeaderBackend `json:"backends,omitempty"`   // the primary first
	UnsafeRaw bool            `json:"unsafe_raw,omitempty"` // secrets are in the file

	// About says from which fields one sees what a call is about, where the program that reads
	// the file may not know it: full name of a field → "id", "name" or "namespace".
	About map[string]string `json:"about,omitempty"`

	// Descriptors is a serialized FileDescriptorSet of the API, where the program
	// that reads the file may not know it. Not in pcapng, which has no room for it.
	Descriptors []byte `json:"descriptors,omitempty"`
}

// A HeaderBackend is one of the backends.
type HeaderBackend struct {
	Name    string `json:"name"`
	Address string `json:"address"`
}

func (h *FileHeader) address(backend string) string {
	if i := h.Order(backend); i < len(h.Backends) {
		return h.Backends[i].Address
	}
	return ""
}

// Order returns the place of a backend among all, for sorting: unknown ones last.
func (h *FileHeader) Order(backend string) int {
	if i := slices.IndexFunc(h.Backends, func(b HeaderBackend) bool { return b.Name == backend }); i >= 0 {
		return i
	}
	return len(h.Backends)
}

// An Encoder turns events into bytes of a file. It keeps what it needs of the
// calls under way. It must not be used by two goroutines at once.
type Encoder interface {
	// Begin appends the beginning of a file. It may be called again, for the next.
	Begin(dst []byte, h *FileHeader) []byte
	// Append appends an event.
	Append(dst []byte, ev *Event) []byte
}

// NewEncoder returns an encoder. The schema is for decoding messages.
func NewEncoder(f Format, schema *codec.Schema) Encoder {
	switch f {
	case PCAPNG:
		return newPcapEncoder(schema)
	case Binlog:
		return &binlogEncoder{}
	default:
		return &jsonEncoder{schema: schema}
	}
}

// errOther says that a file is not one of ours.
var errOther = errors.New("is no capture of criproxy; it reads what it wrote itself, as .jsonl, .pcapng or .binlog, and the binary logs of gRPC")
