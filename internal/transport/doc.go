// Package transport is gRPC over HTTP/2 for a proxy: a server and a client connection
// whose messages are frames of package codec. It never decodes them.
//
// The package is criproxy's data path: internal/server serves clients with its Server, and package
// director reaches backends with its Client. testbed/transport runs it against other
// implementations.
//
// # How a connection works
//
// Each connection has one goroutine that reads, the reader. It parses frames, reassembles the
// messages of each stream, and hands a complete call to a goroutine that runs its handler. The
// reader waits for nothing but the peer's next bytes: not for a handler, not for memory, not for
// a peer that does not read. So no call can hold up another.
//
// There is no goroutine for writing. A goroutine that sends appends whole frames to the
// connection's buffer and writes the buffer with a system call that does not block. If another
// goroutine is already writing, that one writes the new frames too: concurrent calls share system
// calls. If the peer does not read, a new goroutine waits for the peer; all senders wait for that
// goroutine, or for the end of their call. A unary call costs one write and one wait on either
// side.
//
// # How much memory a peer can take
//
// Flow-control windows bound the bytes that have arrived and that no call has received yet: 64 KiB
// for each stream. The first five bytes of a message hold its length. For a message longer than
// the window, the transport first asks the [Budget] for memory and then enlarges the window by
// what the message needs. Until then the sender waits. So a client that reads nothing takes no
// more memory than its windows allow, and a runtime waits for a slow client.
//
// Bytes that wait to be written are bounded as well. A message stays with its sender until the
// peer's windows let it through. A call counts as running until its status fits into the buffer.
// Frames that answer the peer (acknowledgements, resets) wait up to a bound; a peer that causes
// more of them without reading is disconnected. The guard counts frames that cost us more than the
// peer, and closes the connection of a peer that sends many of them for little work: see guard.go.
//
// # Files
//
// conn.go is the part that servers and clients share, the settings of both ends among it; reader.go and writer.go are its
// two halves.
// stream.go is one call on a connection, message.go reassembles its messages, flow.go grants the
// peer its windows, and send.go waits for the peer's. headers.go and encoder.go are HPACK.
// server.go, serverconn.go and serverstream.go are the server. client.go keeps a connection up;
// clientconn.go and clientstream.go are the calls on it. status.go and metadata.go map gRPC's
// statuses and metadata to HTTP/2.
//
// The protocol is https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md, based on
// RFC 9113 and RFC 7541. Where these leave a choice, the package does what grpc-go does, because
// its peers are grpc-go clients and servers.
package transport
