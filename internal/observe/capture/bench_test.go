package capture_test

import (
	"context"
	"fmt"
	"testing"

	"google.golang.org/grpc/metadata"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// passed records a call that passes to a backend: two legs with four events each.
func passed(rec *capture.Recorder, method string, md metadata.MD, request, reply *codec.Frame) {
	ctx, client := rec.Begin(context.Background(), capture.LegInfo{Method: method, Client: true, Metadata: md})
	client.Request(request)
	_, back := rec.Begin(ctx, capture.LegInfo{Method: method, Backend: "primary"})
	back.Request(request)
	back.Reply(reply)
	back.End(nil, nil)
	client.Reply(reply)
	client.End(nil, nil)
}

// The part of recording for which a call waits.
func BenchmarkRecord(b *testing.B) {
	request, reply := muxtest.Frame(b, "GetRequest", `book_id: "beta.io__7f"`), muxtest.Frame(b, "Book", `id: "beta.io__7f" title: "Tale" labels {key: "a" value: "b"}`)
	md := metadata.Pairs(":authority", "localhost", "content-type", "application/grpc", "user-agent", "grpc-go/1.76.0")
	for name, redact := range map[string]*capture.Redactor{"plain": nil, "redacted": redactor} {
		b.Run(name, func(b *testing.B) {
			rec := capture.NewRecorder(capture.Config{Redact: redact})
			method := muxtest.Method("Get")
			b.ReportAllocs()
			for b.Loop() {
				passed(rec, method, md, request, reply)
			}
		})
	}
}

// BenchmarkFollow measures how a follower reads one event of a call that is as the one before, secrets out.
func BenchmarkFollow(b *testing.B) {
	rec := capture.NewRecorder(capture.Config{Redact: redactor})
	labels := ""
	for i := range 14 {
		labels += fmt.Sprintf(` labels {key: "io.kubernetes.container.label%d" value: "a value of usual length"}`, i)
	}
	request, reply := muxtest.Frame(b, "PutRequest", labels), muxtest.Frame(b, "Book", `id: "7f"`)
	for range 1000 {
		_, client := rec.Begin(context.Background(), capture.LegInfo{Method: muxtest.Method("Put"), Client: true})
		client.Request(request)
		client.Reply(reply)
		client.End(nil, nil)
	}
	f := rec.Follow(true)
	var ev capture.Event
	b.ReportAllocs()
	for b.Loop() {
		if !f.TryNext(&ev) {
			f = rec.Follow(true)
		}
	}
}

// BenchmarkEncode measures how a file's writer encodes one event.
func BenchmarkEncode(b *testing.B) {
	rec := capture.NewRecorder(capture.Config{})
	request, reply := muxtest.Frame(b, "GetRequest", `book_id: "beta.io__7f"`), muxtest.Frame(b, "Book", `id: "beta.io__7f" title: "Tale" labels {key: "a" value: "b"}`)
	md := metadata.Pairs(":authority", "localhost", "content-type", "application/grpc", "user-agent", "grpc-go/1.76.0")
	for range 100 {
		passed(rec, muxtest.Method("Get"), md, request, reply)
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
	labels := ""
	for i := range 4000 {
		labels += fmt.Sprintf(` labels {key: "label%d" value: "a value of usual length"}`, i)
	}
	list := capture.Event{Kind: capture.Reply, Method: muxtest.Method("Get"), Payload: muxtest.Frame(b, "Book", labels).AppendTo(nil, 1<<20)}
	b.Run("jsonl, a list again", func(b *testing.B) {
		enc := capture.NewEncoder(capture.JSONL, muxtest.Library)
		var buf []byte
		for b.Loop() {
			buf = enc.Append(buf[:0], &list)
		}
	})
}
