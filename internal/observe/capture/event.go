package capture

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
)

// A Kind says what happened on a leg of a call.
type Kind uint8

// The kinds of events. A leg begins with Start and ends with End. Missed and Changed belong to no call.
const (
	Start   Kind = iota + 1 // the call begins: its metadata and deadline
	Request                 // a message towards the backend
	Header                  // the header of the answer
	Reply                   // a message towards the client
	End                     // status and trailer
	Missed                  // events are missing here: the follower was too slow
	Changed                 // the condition of a backend, or the state of the proxy itself, changed
)

var kindNames = [...]string{Start: "start", Request: "request", Header: "header", Reply: "reply", End: "end", Missed: "missed", Changed: "change"}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return ""
}

// kindOf returns the kind called name, zero if there is none.
func kindOf(name string) Kind {
	return Kind(max(slices.Index(kindNames[:], name), 0))
}

// An Event is one thing that happened on one leg of a call. Its slices and maps
// must not be changed. Its JSON has keys of JSON lines; each format writes kind, time and code in its own way.
type Event struct {
	Seq  uint64        `json:"seq,omitempty"`  // counts the events of a recording, from 1
	Call uint64        `json:"call,omitempty"` // which call; both its legs have the same number
	Leg  int           `json:"leg,omitempty"`  // 0 is the client's, the others are those of backends
	Kind Kind          `json:"-"`
	Time time.Time     `json:"-"`
	Mono time.Duration `json:"mono_ns,omitempty"` // since the recording began, by a clock that is never set

	Method  string `json:"method,omitempty"`  // "/runtime.v1.RuntimeService/Version", as it is called on this leg
	Backend string `json:"backend,omitempty"` // of a backend's leg, its name
	Own     bool   `json:"own,omitempty"`     // criproxy made this call itself: there is no client's leg
	Again   bool   `json:"again,omitempty"`   // of Start: the call began in an earlier file, which has this event too
	Passed  bool   `json:"passed,omitempty"`  // the process before this one recorded it, after it had handed over

	Peer    Peer          `json:"peer,omitzero"`        // of a client's Start
	Timeout time.Duration `json:"timeout_ns,omitempty"` // of Start: time left until the deadline, zero if there is none

	// Metadata is the metadata of Start, the header of Header, and the trailer of End.
	Metadata metadata.MD `json:"metadata,omitempty"`

	// Payload is the message of Request and Reply. Size is its whole length, in bytes.
	Payload   []byte `json:"raw,omitempty"`
	Size      int    `json:"size,omitempty"`
	Truncated bool   `json:"truncated,omitempty"` // Payload lacks its end, or all of it
	Redacted  bool   `json:"redacted,omitempty"`  // secrets in Payload or Metadata were overwritten, in equal length

	Code    codes.Code `json:"-"`                 // of End
	Message string     `json:"status,omitempty"`  // of End
	Details []byte     `json:"details,omitempty"` // of End: the serialized google.rpc.Status, if it has details

	Missed uint64 `json:"missed,omitempty"` // of Missed: how many events are missing

	Change *Change `json:"change,omitempty"` // of Changed
}

// front reports whether the event is of the client's leg, or of the only leg of a call that criproxy makes itself.
func (ev *Event) front() bool { return ev.Leg == 0 || ev.Own }

// OfConnection reports whether a key of metadata describes the connection and not the call.
func OfConnection(key string) bool {
	switch key {
	case "content-type", "user-agent", "grpc-accept-encoding", "te":
		return true
	}
	return strings.HasPrefix(key, ":")
}

// A Peer is the process at the other end of a client's connection. Its JSON is stable.
type Peer struct {
	PID  int    `json:"pid"`  // zero if unknown
	UID  int    `json:"uid"`  // of its user
	Name string `json:"name"` // as in /proc/PID/comm when it connected
}
