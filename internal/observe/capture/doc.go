// Package capture records calls, and reads and writes recordings.
//
// A [Recorder] records each leg of each call: the client's, and one for each backend. It keeps the
// latest [Event]s in bounded memory, hands them out without secrets, and never makes a call wait:
//
//	rec := capture.NewRecorder(capture.Config{Schema: schema, Redact: capture.NewRedactor(schema, secrets)})
//	ctx, leg := rec.Begin(ctx, capture.LegInfo{Method: method, Client: true})
//	leg.Request(frame)
//	leg.End(nil, nil)
//
// Any number of followers read the events at their own pace ([Recorder.Follow]). A [Writer] writes
// the events of a follower to a file, whose name says the [Format]: JSON lines, pcapng for
// Wireshark, or gRPC's binary log. A [Reader] reads all three. docs/capture.md specifies the
// formats.
//
// The recorder (recorder.go) encodes events (encode.go) and keeps them in the ring (ring.go), from
// which a [Follower] reads (follow.go) and redacts them (redact.go). Each format has a file that
// writes it and one that reads it: jsonl, binlog, pcap.
package capture
