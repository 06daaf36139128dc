package transport

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// begin makes s a stream of the connection, and appends its headers to the buffer. It waits while
// there are too many calls. It returns errAgain if the connection accepts no more calls. c.mu is
// held; begin releases it while it waits.
func (c *clientConn) begin(s *clientStream, method string, md metadata.MD) error {
	defer c.nudge() // there may be room for another call
	for waited := false; ; waited = true {
		switch {
		case c.away || c.err != nil:
			return errAgain
		case c.mayAppend(waited):
			return c.appendCall(s, method, md)
		}
		if err := c.awaitTurn(s.ctx); err != nil {
			return err
		}
	}
}

var errAgain = errors.New("transport: the connection accepts no more calls")

// appendCall appends the headers of a call to the buffer, and makes s a stream of the connection. Ids must go up in the order in
// which the headers are sent, so both happen under the same lock. c.mu is held.
func (c *clientConn) appendCall(s *clientStream, method string, md metadata.MD) error {
	timeout := ""
	if deadline, ok := s.ctx.Deadline(); ok {
		left := time.Until(deadline)
		if left <= 0 {
			return status.Error(codes.DeadlineExceeded, context.DeadlineExceeded.Error())
		}
		timeout = EncodeTimeout(left)
	}
	cfg := &c.client.cfg
	var some [8]field
	fields := appendMetadata(some[:0], md, func(name string) { cfg.Lost(Loss{method, name, false, LossBytes}) })
	size := listSize(fields) + len(method) + len(cfg.Authority) + len(cfg.UserAgent) + 512 // more than the other fields take
	if size > c.peerHeaders {
		return status.Errorf(codes.Internal, "header list size to send violates the maximum size (%d bytes) set by server", c.peerHeaders)
	}
	s.method = method
	s.init(c.conn, c.next)
	e := c.encoder
	b := e.begin(c.scratch[:0])
	b = e.static(b, methodPOST)
	b = e.static(b, c.scheme)
	b = e.repeated(b, ":path", method)
	b = e.repeated(b, ":authority", cfg.Authority)
	b = e.repeated(b, "content-type", grpcType)
	if cfg.UserAgent != "" {
		b = e.repeated(b, "user-agent", cfg.UserAgent)
	}
	b = e.repeated(b, "te", "trailers")
	if timeout != "" {
		b = e.varying(b, "grpc-timeout", timeout)
	}
	for _, f := range fields {
		b = e.once(b, f.name, f.value)
	}
	if cfg.Via != "" { // after those of the proxies before
		b = e.repeated(b, ViaField, cfg.Via)
	}
	c.out = appendHeaders(c.out, b, s.id, false, c.peerFrame)
	c.scratch = b[:0]
	if c.next += 2; c.next > lastStreamID {
		c.leaveSoon("all stream ids are used")
	}
	return nil
}
