package transport

import (
	"time"

	"google.golang.org/grpc/mem"
)

// rejectTime bounds how long a request that is no call is waited for.
const rejectTime = time.Second

// drain waits for the end of a request, or for as long as it is worth it: who is answered
// too early may not look at the answer.
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
		_ = s.conn.sendBytes(&s.stream, mem.BufferSlice{text}) // if it fails, nobody is there
	}
}
