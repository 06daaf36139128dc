package capture

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"hash/maphash"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/metadata"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/base/dump"
)

// jsonEncoder writes JSON lines. Most messages are as they were: on the other leg of the call, or in an earlier call.
type jsonEncoder struct {
	schema  *codec.Schema
	seed    maphash.Seed
	spelled map[uint64]*spelled // :: hash of a message → its text
	held    int                 // bytes of these
	known   *spelled            // of these, the latest that knows has found; nil: none
	seq     uint64              // number of the event with that message
}

// spelled is a message with its text.
type spelled struct {
	method  string
	kind    Kind
	payload []byte
	text    []byte
	clean   bool // it is whole, and had no secrets
}

const (
	maxSpelled = 512 << 10 // bytes of a message whose text is kept
	maxHeld    = 4 << 20   // bytes of all of these
)

// find returns the message that is as that of an event, nil if there is none, and the hash of both.
func (e *jsonEncoder) find(ev *Event) (s *spelled, hash uint64) {
	if len(ev.Payload) > maxSpelled {
		return nil, 0
	}
	hash = maphash.Bytes(e.seed, ev.Payload)
	if s = e.spelled[hash]; s != nil && s.kind == ev.Kind && s.method == ev.Method && bytes.Equal(s.payload, ev.Payload) {
		return s, hash
	}
	return nil, hash
}

// knows reports whether the message of an event, in which nobody has looked for secrets yet, is as one that had none.
func (e *jsonEncoder) knows(ev *Event) bool {
	s, _ := e.find(ev)
	if s == nil || !s.clean {
		return false
	}
	e.known, e.seq = s, ev.Seq
	return true
}

// message appends the message of an event.
func (e *jsonEncoder) message(dst []byte, ev *Event) []byte {
	if e.known != nil && e.seq == ev.Seq {
		return append(dst, e.known.text...)
	}
	s, hash := e.find(ev)
	if s != nil {
		return append(dst, s.text...)
	}
	at := len(dst)
	dst = append(dst, `,"message":`...)
	dst = dump.AppendJSON(dst, MessageOf(e.schema, ev.Method, ev.Kind), ev.Payload)
	dst = append(dst, `,"raw":"`...)
	dst = base64.StdEncoding.AppendEncode(dst, ev.Payload)
	dst = append(dst, '"')
	if len(ev.Payload) <= maxSpelled {
		if e.held += len(ev.Payload) + len(dst) - at; e.held > maxHeld {
			clear(e.spelled)
			e.held = 0
		}
		e.spelled[hash] = &spelled{ev.Method, ev.Kind, bytes.Clone(ev.Payload), bytes.Clone(dst[at:]), !ev.Truncated && !ev.Redacted}
	}
	return dst
}

func (e *jsonEncoder) Begin(dst []byte, h *FileHeader) []byte {
	line, _ := json.Marshal(struct { // cannot fail: it holds strings and numbers
		Kind string `json:"kind"`
		*FileHeader
	}{"file", h})
	return append(append(dst, line...), '\n')
}

func (e *jsonEncoder) Append(dst []byte, ev *Event) []byte {
	dst = append(dst, `{"kind":"`...)
	dst = append(dst, ev.Kind.String()...)
	dst = append(dst, '"')
	dst = jsonUint(dst, "seq", ev.Seq)
	if ev.Kind == Missed {
		dst = jsonUint(dst, "missed", ev.Missed)
		return append(jsonTime(dst, ev.Time), "}\n"...)
	}
	if ev.Kind == Changed {
		dst = append(jsonTime(dst, ev.Time), `,"change":`...)
		return append(append(dst, ev.Change.encode()...), "}\n"...)
	}
	dst = jsonUint(dst, "call", ev.Call)
	dst = jsonUint(dst, "leg", uint64(ev.Leg))
	dst = jsonTime(dst, ev.Time)
	dst = jsonUint(dst, "mono_ns", uint64(ev.Mono))
	dst = jsonText(dst, "method", ev.Method)
	if ev.Backend != "" {
		dst = jsonText(dst, "backend", ev.Backend)
	}
	dst = jsonFlag(dst, "own", ev.Own)
	dst = jsonFlag(dst, "again", ev.Again)
	switch ev.Kind {
	case Start:
		if ev.Peer.PID != 0 {
			dst = append(dst, `,"peer":{"pid":`...)
			dst = strconv.AppendInt(dst, int64(ev.Peer.PID), 10)
			dst = append(dst, `,"uid":`...)
			dst = strconv.AppendInt(dst, int64(ev.Peer.UID), 10)
			dst = append(jsonText(dst, "name", ev.Peer.Name), '}')
		}
		if ev.Timeout > 0 {
			dst = jsonUint(dst, "timeout_ns", uint64(ev.Timeout))
		}
	case Request, Reply:
		dst = jsonUint(dst, "size", uint64(ev.Size))
		dst = e.message(dst, ev)
	case End:
		dst = jsonText(dst, "code", ev.Code.String())
		if ev.Message != "" {
			dst = jsonText(dst, "status", ev.Message)
		}
		if len(ev.Details) > 0 {
			dst = append(dst, `,"details":"`...)
			dst = append(base64.StdEncoding.AppendEncode(dst, ev.Details), '"')
		}
	}
	dst = jsonFlag(dst, "truncated", ev.Truncated)
	dst = jsonFlag(dst, "redacted", ev.Redacted)
	if len(ev.Metadata) > 0 {
		dst = jsonMetadata(append(dst, `,"metadata":`...), ev.Metadata)
	}
	return append(dst, "}\n"...)
}

func jsonUint(dst []byte, key string, v uint64) []byte {
	dst = append(append(append(dst, `,"`...), key...), `":`...)
	return strconv.AppendUint(dst, v, 10)
}

func jsonFlag(dst []byte, key string, v bool) []byte {
	if !v {
		return dst
	}
	return append(append(append(dst, `,"`...), key...), `":true`...)
}

func jsonTime(dst []byte, t time.Time) []byte {
	dst = append(dst, `,"time":"`...)
	return append(t.UTC().AppendFormat(dst, time.RFC3339Nano), '"')
}

func jsonText(dst []byte, key, v string) []byte {
	dst = append(append(append(dst, `,"`...), key...), `":`...)
	return jsonString(dst, v)
}

// jsonString appends v as a JSON string. It is fast for plain ASCII.
func jsonString(dst []byte, v string) []byte {
	for i := range len(v) {
		if c := v[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			quoted, _ := json.Marshal(v) // a string: cannot fail
			return append(dst, quoted...)
		}
	}
	return append(append(append(dst, '"'), v...), '"')
}

// jsonMetadata appends metadata, sorted by key; values of "-bin" keys are base64.
func jsonMetadata(dst []byte, md metadata.MD) []byte {
	dst = append(dst, '{')
	var room [16]string
	for i, key := range sortedKeys(room[:0], md) {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(jsonString(dst, key), ":["...)
		for j, v := range md[key] {
			if j > 0 {
				dst = append(dst, ',')
			}
			if strings.HasSuffix(key, "-bin") {
				v = base64.StdEncoding.EncodeToString([]byte(v))
			}
			dst = jsonString(dst, v)
		}
		dst = append(dst, ']')
	}
	return append(dst, '}')
}
