package capture

import (
	"encoding/binary"
	"encoding/json"
	"slices"
	"sort"

	binlogpb "google.golang.org/grpc/binarylog/grpc_binarylog_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// binlogEncoder writes grpc.binarylog.v1.GrpcLogEntry messages, each behind its
// length in 4 bytes, big-endian, as gRPC itself does. The client's leg is that of a
// server, those of backends are a client's.
type binlogEncoder struct{ header *FileHeader }

// extraField is the field of a GrpcLogEntry, unknown to others, in which stands
// what GrpcLogEntry has no place for, as JSON.
const extraField = 1000

// binlogExtra is the content of extraField.
type binlogExtra struct {
	File    *FileHeader `json:"file,omitempty"`
	Seq     uint64      `json:"seq,omitempty"`
	Call    uint64      `json:"call,omitempty"`
	Leg     int         `json:"leg,omitempty"`
	Mono    int64       `json:"mono_ns,omitempty"`
	Method  string      `json:"method,omitempty"`
	Backend string      `json:"backend,omitempty"`
	PID     int         `json:"pid,omitempty"`
	UID     int         `json:"uid,omitempty"`
	Name    string      `json:"name,omitempty"`
	Own     bool        `json:"own,omitempty"`
	Again   bool        `json:"again,omitempty"`
	Hidden  bool        `json:"redacted,omitempty"`
	Missed  uint64      `json:"missed,omitempty"`
}

func (e *binlogEncoder) Begin(dst []byte, h *FileHeader) []byte {
	e.header = h
	return appendEntry(dst, &binlogpb.GrpcLogEntry{Timestamp: timestamppb.New(h.Created)}, &binlogExtra{File: h})
}

func appendEntry(dst []byte, entry *binlogpb.GrpcLogEntry, extra *binlogExtra) []byte {
	if extra != nil {
		more, err := json.Marshal(extra)
		if err != nil { // strings and numbers: cannot fail
			return dst
		}
		entry.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, extraField, protowire.BytesType), more))
	}
	at := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	whole, err := proto.MarshalOptions{}.MarshalAppend(dst, entry)
	if err != nil { // text that is no UTF-8, in a status or in metadata
		return dst[:at]
	}
	binary.BigEndian.PutUint32(whole[at:], uint32(len(whole)-at-4))
	return whole
}

func (e *binlogEncoder) Append(dst []byte, ev *Event) []byte {
	extra := &binlogExtra{
		Seq: ev.Seq, Call: ev.Call, Leg: ev.Leg, Mono: int64(ev.Mono), Method: ev.Method, Backend: ev.Backend,
		Own: ev.Own, Again: ev.Again, Hidden: ev.Redacted, Missed: ev.Missed,
		PID: ev.Peer.PID, UID: ev.Peer.UID, Name: ev.Peer.Name,
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
	return appendEntry(dst, entry, extra)
}

func first(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return valid(values[0])
}

func binlogMetadata(md metadata.MD) *binlogpb.Metadata {
	keys := make([]string, 0, len(md))
	for key := range md {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	m := &binlogpb.Metadata{}
	for _, key := range keys {
		for _, v := range md[key] {
			m.Entry = append(m.Entry, &binlogpb.MetadataEntry{Key: valid(key), Value: slices.Clone([]byte(v))})
		}
	}
	return m
}
