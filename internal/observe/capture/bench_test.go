package capture_test

import (
	"context"
	"testing"

	"google.golang.org/grpc/metadata"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// The part of recording for which a call waits: two legs with four events each.
func BenchmarkRecord(b *testing.B) {
	request, reply := muxtest.Frame(b, "GetRequest", `book_id: "beta.io__7f"`), muxtest.Frame(b, "Book", `id: "beta.io__7f" title: "Tale" labels {key: "a" value: "b"}`)
	md := metadata.Pairs(":authority", "localhost", "content-type", "application/grpc", "user-agent", "grpc-go/1.76.0")
	for name, redact := range map[string]*capture.Redactor{"plain": nil, "redacted": redactor} {
		b.Run(name, func(b *testing.B) {
			rec := capture.NewRecorder(capture.Config{Redact: redact})
			b.ReportAllocs()
			for b.Loop() {
				ctx, client := rec.Begin(context.Background(), capture.LegInfo{Method: muxtest.Method("Get"), Client: true, Metadata: md})
				client.Request(request)
				_, back := rec.Begin(ctx, capture.LegInfo{Method: muxtest.Method("Get"), Backend: "primary", Metadata: md})
				back.Request(request)
				back.Reply(reply)
				back.End(nil, nil)
				client.Reply(reply)
				client.End(nil, nil)
			}
		})
	}
}

// BenchmarkEncode measures how a file's writer encodes one event.
func BenchmarkEncode(b *testing.B) {
	rec := capture.NewRecorder(capture.Config{})
	request, reply := muxtest.Frame(b, "GetRequest", `book_id: "beta.io__7f"`), muxtest.Frame(b, "Book", `id: "beta.io__7f" title: "Tale" labels {key: "a" value: "b"}`)
	md := metadata.Pairs(":authority", "localhost", "content-type", "application/grpc", "user-agent", "grpc-go/1.76.0")
	for range 100 {
		ctx, client := rec.Begin(context.Background(), capture.LegInfo{Method: muxtest.Method("Get"), Client: true, Metadata: md})
		client.Request(request)
		_, back := rec.Begin(ctx, capture.LegInfo{Method: muxtest.Method("Get"), Backend: "primary", Metadata: md})
		back.Request(request)
		back.Reply(reply)
		back.End(nil, nil)
		client.Reply(reply)
		client.End(nil, nil)
	}
	all := recorded(b, rec)
	for _, f := range capture.Formats {
		b.Run(string(f), func(b *testing.B) {
			enc := capture.NewEncoder(f, muxtest.Library)
			buf := enc.Begin(nil, &header)
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				buf = enc.Append(buf[:0], &all[i])
				if i++; i == len(all) {
					i = 0
				}
			}
		})
	}
}

var _ = codec.Raw
