package capture

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"maps"
	"slices"

	binlogpb "google.golang.org/grpc/binarylog/grpc_binarylog_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// binlogEncoder writes grpc.binarylog.v1.GrpcLogEntry messages, each after its length in 4 bytes,
// big-endian, as gRPC itself does. The client's leg is logged as a server's, the backend legs as a
// client's.
type binlogEncoder struct {
	header *FileHeader
	extra  binlogExtra // of an event
	text   bytes.Buffer
	json   *json.Encoder // writes there
	room   []byte        // scratch
}

// extraField is a field of GrpcLogEntry that only criproxy knows. It holds, as JSON, what
// GrpcLogEntry has no field for.
const extraField = 1000

// binlogExtra is the content of extraField.
type binlogExtra struct {
	File  *FileHeader `json:"file,omitempty"`
	*Peer             // nil if unknown
	Event
}

func (e *binlogEncoder) Begin(dst []byte, h *FileHeader) []byte {
	e.header, e.json = h, json.NewEncoder(&e.text)
	e.extra = binlogExtra{File: h}
	return e.appendEntry(dst, &binlogpb.GrpcLogEntry{Timestamp: timestamppb.New(h.Created)})
}

// appendEntry appends an entry with the extra fields.
func (e *binlogEncoder) appendEntry(dst []byte, entry *binlogpb.GrpcLogEntry) []byte {
	e.text.Reset()
	_ = e.json.Encode(&e.extra) // cannot fail: it holds strings and numbers
	e.room = protowire.AppendTag(e.room[:0], extraField, protowire.BytesType)
	e.room = protowire.AppendBytes(e.room, bytes.TrimSpace(e.text.Bytes()))
	entry.ProtoReflect().SetUnknown(e.room)
	at := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	whole, err := proto.MarshalOptions{}.MarshalAppend(dst, entry)
	if err != nil { // text that is not UTF-8, in a status or in metadata
		return dst[:at]
	}
	binary.BigEndian.PutUint32(whole[at:], uint32(len(whole)-at-4))
	return whole
}

func (e *binlogEncoder) Append(dst []byte, ev *Event) []byte {
	e.extra = binlogExtra{Event: Event{
		Seq: ev.Seq, Call: ev.Call, Leg: ev.Leg, Mono: ev.Mono, Method: ev.Method, Backend: ev.Backend,
		Own: ev.Own, Again: ev.Again, Passed: ev.Passed, Redacted: ev.Redacted, Missed: ev.Missed, Change: ev.Change,
	}}
	if ev.Peer != (Peer{}) {
		e.extra.Peer = &ev.Peer
	}
	entry := &binlogpb.GrpcLogEntry{
		Timestamp:            timestamppb.New(ev.Time),
		CallId:               ev.Call<<16 | uint64(ev.Leg),
		SequenceIdWithinCall: ev.Seq,
		Logger:               binlogpb.GrpcLogEntry_LOGGER_CLIENT,
		PayloadTruncated:     ev.Truncated,
		Peer:                 &binlogpb.Address{Type: binlogpb.Address_TYPE_UNIX, Address: e.header.address(ev.Backend)},
	}
	if ev.Leg == 0 {
		entry.Logger, entry.Peer.Address = binlogpb.GrpcLogEntry_LOGGER_SERVER, e.header.Listen
	}
	switch ev.Kind {
	case Start:
		h := &binlogpb.ClientHeader{MethodName: valid(ev.Method), Metadata: binlogMetadata(ev.Metadata), Authority: first(ev.Metadata[":authority"])}
		if ev.Timeout > 0 {
			h.Timeout = durationpb.New(ev.Timeout)
		}
		entry.Type, entry.Payload = binlogpb.GrpcLogEntry_EVENT_TYPE_CLIENT_HEADER, &binlogpb.GrpcLogEntry_ClientHeader{ClientHeader: h}
	case Header:
		entry.Type = binlogpb.GrpcLogEntry_EVENT_TYPE_SERVER_HEADER
		entry.Payload = &binlogpb.GrpcLogEntry_ServerHeader{ServerHeader: &binlogpb.ServerHeader{Metadata: binlogMetadata(ev.Metadata)}}
	case Request, Reply:
		entry.Type = binlogpb.GrpcLogEntry_EVENT_TYPE_CLIENT_MESSAGE
		if ev.Kind == Reply {
			entry.Type = binlogpb.GrpcLogEntry_EVENT_TYPE_SERVER_MESSAGE
		}
		entry.Payload = &binlogpb.GrpcLogEntry_Message{Message: &binlogpb.Message{Length: uint32(ev.Size), Data: ev.Payload}}
	case End:
		entry.Type = binlogpb.GrpcLogEntry_EVENT_TYPE_SERVER_TRAILER
		entry.Payload = &binlogpb.GrpcLogEntry_Trailer{Trailer: &binlogpb.Trailer{
			Metadata: binlogMetadata(ev.Metadata), StatusCode: uint32(ev.Code), StatusMessage: valid(ev.Message), StatusDetails: ev.Details,
		}}
	default:
		entry.CallId, entry.SequenceIdWithinCall, entry.Peer = 0, 0, nil
	}
	return e.appendEntry(dst, entry)
}

func first(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return valid(values[0])
}

func binlogMetadata(md metadata.MD) *binlogpb.Metadata {
	m := &binlogpb.Metadata{}
	for _, key := range slices.Sorted(maps.Keys(md)) {
		for _, v := range md[key] {
			m.Entry = append(m.Entry, &binlogpb.MetadataEntry{Key: valid(key), Value: slices.Clone([]byte(v))})
		}
	}
	return m
}
