package capture

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	binlogpb "google.golang.org/grpc/binarylog/grpc_binarylog_v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/criproxy/criproxy/internal/base/wire"
)

func valid(s string) string { return strings.ToValidUTF8(s, string(utf8.RuneError)) }

// binlogDecoder reads binary logs: our own, which hold more, and those that gRPC itself writes.
type binlogDecoder struct {
	r       *bufio.Reader
	first   *binlogpb.GrpcLogEntry // read ahead by begin
	methods map[uint64]string      // :: call id → method, of logs that are not ours
	entries int
}

func (d *binlogDecoder) read() (*binlogpb.GrpcLogEntry, error) {
	var size [4]byte
	if n, err := io.ReadFull(d.r, size[:]); err != nil {
		if n == 0 && errors.Is(err, io.EOF) {
			return nil, io.EOF
		}
		return nil, io.ErrUnexpectedEOF
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > maxRecord {
		return nil, fmt.Errorf("entry %d is longer than %d bytes: %w", d.entries+1, maxRecord, errOther)
	}
	b, err := readN(d.r, int(n))
	if err != nil {
		return nil, err
	}
	d.entries++
	entry := &binlogpb.GrpcLogEntry{}
	if err := proto.Unmarshal(b, entry); err != nil {
		return nil, fmt.Errorf("entry %d: %w", d.entries, errOther)
	}
	return entry, nil
}

// readN reads n bytes. It does not allocate them before they have been read: n may be wrong.
func readN(r io.Reader, n int) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, int64(n)))
	if err != nil || len(b) < n {
		return nil, io.ErrUnexpectedEOF
	}
	return b, nil
}

func (d *binlogDecoder) begin() (FileHeader, error) {
	d.methods = map[uint64]string{}
	entry, err := d.read()
	if err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, errOther) {
			return FileHeader{}, errOther
		}
		return FileHeader{}, err
	}
	if extra := extraOf(entry); extra != nil && extra.File != nil {
		return *extra.File, nil
	}
	if entry.GetType() == binlogpb.GrpcLogEntry_EVENT_TYPE_UNKNOWN || entry.GetTimestamp() == nil {
		return FileHeader{}, errOther
	}
	d.first = entry
	return FileHeader{Version: Version, Created: entry.GetTimestamp().AsTime(), UnsafeRaw: true}, nil
}

// extraOf returns the content of an entry's extraField, or nil if criproxy did not write the entry.
func extraOf(entry *binlogpb.GrpcLogEntry) *binlogExtra {
	for f := range wire.Fields(entry.ProtoReflect().GetUnknown()) {
		extra := &binlogExtra{}
		if f.Number == extraField && f.Type == protowire.BytesType && json.Unmarshal(f.Bytes(), extra) == nil {
			return extra
		}
	}
	return nil
}

func (d *binlogDecoder) next(ev *Event) error {
	for {
		entry := d.first
		d.first = nil
		if entry == nil {
			var err error
			if entry, err = d.read(); err != nil {
				return err
			}
		}
		extra := extraOf(entry)
		if extra != nil && extra.File != nil {
			continue
		}
		if d.event(entry, extra, ev) {
			return nil
		}
	}
}

// event turns an entry into an event, and reports whether there is an event of this kind.
func (d *binlogDecoder) event(entry *binlogpb.GrpcLogEntry, extra *binlogExtra, ev *Event) bool {
	*ev = Event{}
	if extra != nil {
		*ev = extra.Event
		if extra.Peer != nil {
			ev.Peer = *extra.Peer
		}
	} else {
		ev.Seq, ev.Call = uint64(d.entries), entry.GetCallId()
		if entry.GetLogger() == binlogpb.GrpcLogEntry_LOGGER_CLIENT {
			ev.Leg, ev.Own = 1, true
		}
		if h := entry.GetClientHeader(); h != nil && len(d.methods) < 1<<20 {
			d.methods[ev.Call] = h.GetMethodName()
		}
		ev.Method = d.methods[ev.Call]
	}
	ev.Time, ev.Truncated = entry.GetTimestamp().AsTime(), entry.GetPayloadTruncated()
	switch entry.GetType() {
	case binlogpb.GrpcLogEntry_EVENT_TYPE_CLIENT_HEADER:
		ev.Kind = Start
		h := entry.GetClientHeader()
		ev.Metadata = mdOf(h.GetMetadata())
		if h.GetTimeout() != nil {
			ev.Timeout = h.GetTimeout().AsDuration()
		}
	case binlogpb.GrpcLogEntry_EVENT_TYPE_SERVER_HEADER:
		ev.Kind = Header
		ev.Metadata = mdOf(entry.GetServerHeader().GetMetadata())
	case binlogpb.GrpcLogEntry_EVENT_TYPE_CLIENT_MESSAGE, binlogpb.GrpcLogEntry_EVENT_TYPE_SERVER_MESSAGE:
		ev.Kind = Request
		if entry.GetType() == binlogpb.GrpcLogEntry_EVENT_TYPE_SERVER_MESSAGE {
			ev.Kind = Reply
		}
		ev.Size, ev.Payload = int(entry.GetMessage().GetLength()), entry.GetMessage().GetData()
	case binlogpb.GrpcLogEntry_EVENT_TYPE_SERVER_TRAILER:
		ev.Kind = End
		t := entry.GetTrailer()
		ev.Code, ev.Message, ev.Details, ev.Metadata = codes.Code(t.GetStatusCode()), t.GetStatusMessage(), t.GetStatusDetails(), mdOf(t.GetMetadata())
		if extra == nil {
			delete(d.methods, ev.Call)
		}
	case binlogpb.GrpcLogEntry_EVENT_TYPE_CANCEL:
		ev.Kind, ev.Code, ev.Message = End, codes.Canceled, clientEnded
	default:
		switch {
		case ev.Change != nil && ev.Change.What != "":
			ev.Kind = Changed
		case ev.Missed > 0:
			ev.Kind = Missed
		default:
			return false // a half close
		}
	}
	return true
}

func mdOf(m *binlogpb.Metadata) metadata.MD {
	if len(m.GetEntry()) == 0 {
		return nil
	}
	md := metadata.MD{}
	for _, e := range m.GetEntry() {
		md[e.GetKey()] = append(md[e.GetKey()], string(e.GetValue()))
	}
	return md
}
