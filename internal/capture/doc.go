// Package capture records calls, and reads and writes recordings.
//
// A [Recorder] is shown each leg of each call: the client's, and those of the
// backends. It keeps the latest [Event]s in memory that is bounded, without what
// is secret, and never makes a call wait:
//
//	rec := capture.NewRecorder(capture.Config{Redact: capture.NewRedactor(schema, secrets)})
//	ctx, leg := rec.Begin(ctx, capture.LegInfo{Method: method, Client: true})
//	leg.Request(frame)
//	leg.End(nil, nil)
//
// Any number of followers read the events at their own pace ([Recorder.Follow]).
// One of them may be a file's ([Writer]), in a [Format] that its name says:
// JSON lines, pcapng for Wireshark, or gRPC's binary log. A [Reader] reads all of
// them. docs/capture.md specifies the formats.
//
// The recorder (recorder.go) redacts what it is shown (redact.go), encodes it (encode.go) and keeps
// it in the ring (ring.go), from which a [Follower] reads (follow.go). Each format has a file that
// writes it and one that reads it: jsonl, binlog, pcap.
package capture
