package transport

import (
	"time"

	"google.golang.org/grpc/mem"
)

// rejectTime bounds how long the server waits for the rest of a request that is no call.
const rejectTime = time.Second

// drain waits for the end of a request, for at most rejectTime: a client that gets the answer
// too early may ignore it.
func (s *serverStream) drain() {
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

// explain answers a request that is not gRPC's in words.
func (s *serverStream) explain() {
	s.kind = "text/plain"
	text := mem.SliceBuffer(s.rejected.status.Message() + "; this server speaks gRPC, whose content type is application/grpc\n")
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	if s.sendHeader() == nil {
		_ = s.conn.sendBytes(&s.stream, mem.BufferSlice{text}) // if it fails, the client has gone
	}
}
