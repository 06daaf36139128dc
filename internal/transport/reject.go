package transport

import (
	"time"

	"google.golang.org/grpc/mem"
)

// rejectTime bounds how long the server waits for the rest of a request that it rejects.
const rejectTime = time.Second

// awaitEnd waits for the end of a request, for at most rejectTime: a client that is still sending
// may ignore the answer.
func (s *serverStream) awaitEnd() {
	timeout := time.NewTimer(rejectTime)
	defer timeout.Stop()
	for {
		s.conn.mu.Lock()
		over := s.ended || s.gone
		s.conn.mu.Unlock()
		if over {
			return
		}
		select {
		case <-s.ready:
		case <-timeout.C:
			return
		}
	}
}

// explain answers a request that is not gRPC with a plain text.
func (s *serverStream) explain() {
	s.kind = "text/plain"
	text := mem.SliceBuffer(s.rejected.status.Message() + "; this server speaks gRPC, whose content type is application/grpc\n")
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	if s.sendHeader() == nil {
		s.sending = outgoing{bufs: mem.BufferSlice{text}, body: true, left: text.Len(), end: true}
		_ = s.conn.sendAll(&s.stream) // fails only if the client has gone
	}
}
