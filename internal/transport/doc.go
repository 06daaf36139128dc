// Package transport is gRPC over HTTP/2 for a proxy: a server and a client connection
// whose messages are frames of package codec, which are not decoded on their way.
//
// It is criproxy's data path: internal/daemon serves clients with its Server, package director
// reaches backends with its Client. testbed/transport runs it against other implementations.
//
// # How a connection works
//
// Each connection has one goroutine that reads. It takes frames apart, puts the messages
// of a stream together, and hands a call that is complete to a goroutine that works on it.
// It never waits for anything but the peer's next bytes: not for a handler, not for
// memory, not for a peer that does not read. So nothing that one call does holds up another.
//
// There is no goroutine for writing. A goroutine that sends appends whole frames to the
// connection's buffer and writes the buffer, with a system call that does not wait. If another
// goroutine is writing already, that one writes the new frames as well: many calls at once
// share system calls. If the peer does not read, a new goroutine waits for the peer; all senders
// wait for that goroutine, or for the end of their call. A unary call costs one write and one
// wait on either side.
//
// # What a peer can make us keep
//
// The windows of flow control bound the bytes that have come and that no call has received yet:
// 64 KiB for a stream. The first five bytes of a message say how long it is. If it is longer
// than that, the transport asks the [Budget] for memory, and enlarges the window by what the
// message needs once it has the memory. Until then the sender waits, wherever it is. So a client
// that reads nothing keeps no more than its windows hold, and a runtime waits for a slow client.
//
// Bytes that wait to be written are bounded as well. A message stays with its sender until the
// peer's windows let it through. A call counts until its status has room in the buffer. Frames
// that answer the peer (acknowledgements, resets) wait up to a bound; a peer that causes more of
// them and does not read is cut off. The guard counts frames that cost us more than the peer, and
// closes the connection of a peer that sends many of them for little work: see guard.go.
//
// # Where to read on
//
// conn.go is what both ends have in common, with reader.go and writer.go its two halves.
// stream.go is one call on it; message.go puts its messages together; flow.go has the
// windows, send.go what waits for them. headers.go and encoder.go are HPACK. server.go,
// serverconn.go and serverstream.go are the server; client.go keeps a connection up, and
// clientconn.go and clientstream.go are the calls on it. status.go and metadata.go say what
// gRPC's names and numbers are in HTTP/2.
//
// The protocol is that of https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md,
// on RFC 9113 and RFC 7541. Where they leave a choice, we do as grpc-go does: its clients
// and servers are at the other end.
package transport
