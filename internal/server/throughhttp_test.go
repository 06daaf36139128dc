package server

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// netHTTP is a client that knows HTTP/2 but not gRPC: net/http. It sends the request in pieces of any length, with an empty
// DATA frame as its end, or whole, with content-length.
func netHTTP(t *testing.T, socket string) client {
	protocols := &http.Protocols{}
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return func(ctx context.Context, w *whim, md metadata.MD, request []byte) (outcome, error) {
		whole := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(request))), request...)
		var body io.Reader = bytes.NewReader(whole)
		if w.piece > 0 {
			body = &pieces{whole, w.piece}
		}
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost"+w.method.Name, body)
		if err != nil {
			return outcome{}, err
		}
		r.Header.Set("content-type", "application/grpc+proto")
		r.Header.Set("te", "trailers")
		if w.timeout != "" {
			r.Header.Set("grpc-timeout", w.timeout)
		}
		for name, values := range md {
			for _, v := range values {
				if strings.HasSuffix(name, "-bin") {
					v = base64.RawStdEncoding.EncodeToString([]byte(v))
				}
				r.Header.Add(name, v)
			}
		}
		reply, err := transport.RoundTrip(r)
		if err != nil {
			return outcome{}, err
		}
		defer reply.Body.Close()
		return read(reply, w.method.ServerStreams)
	}
}

// pieces is a reader of b that returns at most n bytes at once, and the end alone.
type pieces struct {
	b []byte
	n int
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.b) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.b[:min(p.n, len(p.b))])
	p.b = p.b[n:]
	return n, nil
}

// read returns what the fields and the body of a reply say, by the rules of gRPC.
func read(reply *http.Response, streams bool) (outcome, error) {
	if reply.StatusCode != http.StatusOK {
		return outcome{}, errors.New(reply.Status)
	}
	body, err := io.ReadAll(reply.Body)
	if err != nil {
		return outcome{}, err
	}
	s := outcome{header: metadataOf(reply.Header), trailer: metadataOf(reply.Trailer)}
	if s.header["grpc-status"] != nil { // Trailers-Only
		s.header, s.trailer = nil, s.header
	}
	for len(body) > 0 {
		if len(body) < 5 || body[0] != 0 || binary.BigEndian.Uint32(body[1:]) > uint32(len(body)-5) {
			return s, fmt.Errorf("the body is not messages: %.100q", body)
		}
		end := 5 + binary.BigEndian.Uint32(body[1:])
		s.replies, body = append(s.replies, string(body[5:end])), body[end:]
	}
	// grpc-status stays in the trailer, where it is compared as it came.
	code, err := strconv.ParseUint(strings.Join(s.trailer["grpc-status"], " and "), 10, 32)
	if err != nil {
		return s, err
	}
	if code != 0 && !streams {
		s.replies = nil // clients ignore it
	}
	text := unescaped(strings.Join(s.trailer["grpc-message"], " and "))
	delete(s.trailer, "grpc-message") // it may be escaped in other ways
	if details := s.trailer["grpc-status-details-bin"]; details != nil {
		b, err := base64.RawStdEncoding.DecodeString(details[0])
		if err != nil {
			return s, err
		}
		p := &spb.Status{}
		if err := proto.Unmarshal(b, p); err != nil {
			return s, err
		}
		return s, status.FromProto(p).Err()
	}
	return s, status.Error(codes.Code(code), text)
}

func metadataOf(fields http.Header) metadata.MD {
	md := metadata.MD{}
	for name, values := range fields {
		if values != nil { // otherwise it is the announcement of a trailer
			md[strings.ToLower(name)] = slices.Clone(values)
		}
	}
	return md
}

// unescaped undoes the escapes of an error text, and leaves those that are not valid.
func unescaped(s string) string {
	return escape.ReplaceAllStringFunc(s, func(one string) string {
		b, err := hex.DecodeString(one[1:])
		if err != nil {
			panic(err)
		}
		return string(b)
	})
}

var escape = regexp.MustCompile(`%[0-9A-Fa-f]{2}`)
