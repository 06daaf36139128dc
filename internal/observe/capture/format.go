package capture

import (
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
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

// encoders has each format, and what makes its encoder. The first bytes of a file tell [NewReader] which decoder to use.
var encoders = map[Format]func(*codec.Schema) Encoder{
	JSONL: func(schema *codec.Schema) Encoder {
		return &jsonEncoder{schema: schema, seed: maphash.MakeSeed(), spelled: map[uint64]*spelled{}}
	},
	PCAPNG: func(schema *codec.Schema) Encoder { return newPcapEncoder(schema) },
	Binlog: func(*codec.Schema) Encoder { return &binlogEncoder{} },
}

// Formats are all of them.
var Formats = slices.Sorted(maps.Keys(encoders))

// FormatOf returns the format that the extension of a file name stands for, with or without [Compressed] after it.
func FormatOf(path string) (Format, error) {
	for _, f := range Formats {
		if strings.HasSuffix(strings.TrimSuffix(path, Compressed), "."+string(f)) {
			return f, nil
		}
	}
	return "", fmt.Errorf("%s: the extension must name a format: want .jsonl, .pcapng or .binlog, and .zst behind it to compress the file", filepath.Base(path))
}

// Compressed is the end of the name of a file that is compressed.
const Compressed = ".zst"

// Version is the version of the formats. A Reader reads files of this version and of older ones.
const Version = 1

// A FileHeader says where the events of a file come from. It is the first line in JSON lines, and a
// comment or a separate entry in the other formats.
type FileHeader struct {
	Version   int             `json:"v"`
	Program   string          `json:"program,omitempty"`
	Created   time.Time       `json:"created"`
	Listen    string          `json:"listen,omitempty"`     // the socket of the clients
	Node      string          `json:"node,omitempty"`       // where it was recorded, if several nodes were asked
	Backends  []HeaderBackend `json:"backends,omitempty"`   // the primary first
	UnsafeRaw bool            `json:"unsafe_raw,omitempty"` // secrets are in the file
	Changes   bool            `json:"changes,omitempty"`    // changes of conditions are events of the file

	// About says which fields show what a call is about, if readers may not know the API: full
	// name of a field → "id", "name" or "namespace".
	About map[string]string `json:"about,omitempty"`

	// Descriptors is a serialized FileDescriptorSet of the API, if readers may not know the API.
	// pcapng has no room for it.
	Descriptors []byte `json:"descriptors,omitempty"`
}

// A HeaderBackend is one of the backends.
type HeaderBackend struct {
	Name    string `json:"name"`
	Address string `json:"address"`

	// State is its condition when the header was written, such as [Gone]; empty if the writer did not say.
	State      string    `json:"state,omitempty"`
	Since      time.Time `json:"since,omitzero"` // since when
	Why        string    `json:"why,omitempty"`
	Pods       *int      `json:"pods,omitempty"`       // of the backend; missing if not known
	Containers *int      `json:"containers,omitempty"` // likewise
}

func (h *FileHeader) address(backend string) string {
	if i := h.Order(backend); i < len(h.Backends) {
		return h.Backends[i].Address
	}
	return ""
}

// Order returns the index of a backend, for sorting. Unknown backends come last.
func (h *FileHeader) Order(backend string) int {
	if i := slices.IndexFunc(h.Backends, func(b HeaderBackend) bool { return b.Name == backend }); i >= 0 {
		return i
	}
	return len(h.Backends)
}

// An Encoder turns events into bytes of a file. It keeps state of the calls under way. Only one
// goroutine at a time may use it.
type Encoder interface {
	// Begin appends the beginning of a file. It may be called again, for the next file.
	Begin(dst []byte, h *FileHeader) []byte
	// Append appends an event.
	Append(dst []byte, ev *Event) []byte
}

// NewEncoder returns an encoder of one of the [Formats]. The schema is for decoding messages.
func NewEncoder(f Format, schema *codec.Schema) Encoder { return encoders[f](schema) }

// errOther says that a file is not one of ours.
var errOther = errors.New("is not a capture that criproxy can read; it reads its own .jsonl, .pcapng and .binlog files, also compressed by zstd, and binary logs of gRPC")
