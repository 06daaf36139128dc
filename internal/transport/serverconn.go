package transport

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// A serverConn is the server's end of a connection. A call counts in running from its header block until its handler has
// returned, and so longer than its stream is in conn.streams: a client that resets its calls may not make more of them than
// it may have at once.
//
// The reader collects new calls in fresh, and starts their handlers when a request is complete, or when it has handled all that
// has arrived. So most handlers find their request at once.
type serverConn struct {
	*conn
	server   *Server
	peer     *peer.Peer
	listener net.Listener    // that accepted it; nil if none did
	base     context.Context // parent of the calls' contexts: it holds the peer, and never ends
	fresh    []*serverStream // the reader's: calls whose handlers have not been started

	// conn.mu guards the fields below.
	last    uint32 // id of the newest call
	running int    // handlers that have not returned
	used    uint64 // when the newest call or the connection began, in the time of the server's clock
	pings   pingPolicy
	leaving drainState
	final   uint32 // id of the last call that the connection takes, once leaving is closing
}

// greet does the handshake and reads the connection preface. If it returns no connection, there is
// nothing to send to the client. If it returns a connection and an error, the caller reports the
// error to the client.
func (s *Server) greet(nc net.Conn, shake Handshake) (*serverConn, error) {
	_ = nc.SetDeadline(time.Now().Add(s.cfg.HandshakeTimeout)) // reading or writing returns the error
	p := &peer.Peer{Addr: nc.RemoteAddr(), LocalAddr: nc.LocalAddr()}
	if shake != nil {
		secured, info, err := shake(nc)
		if err != nil {
			return nil, err
		}
		nc, p.AuthInfo = secured, info
	}
	c := &serverConn{server: s, peer: p, base: peer.NewContext(context.Background(), p), pings: pingPolicy{EnforcementPolicy: s.cfg.Pings}}
	c.conn = newConn(nc, c, connConfig{
		maxMessage: s.cfg.MaxMessage, maxHeaders: s.cfg.MaxHeaders, window: s.cfg.Window, strict: true,
		budget: s.cfg.Budget, readBuffer: readBuffer, streams: s.cfg.MaxStreams, stall: s.cfg.StallTimeout,
	})
	c.conn.greet(
		http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: uint32(s.cfg.MaxStreams)},
		http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: uint32(s.cfg.MaxHeaders)},
	)
	if err := c.preface(); err != nil {
		var mistake connError
		if errors.As(err, &mistake) {
			return c, err
		}
		return nil, err
	}
	_ = nc.SetDeadline(time.Time{}) // reading or writing returns the error
	c.own()
	c.keepalive()
	return c, nil
}

// preface reads the client's connection preface: a fixed text, and a SETTINGS frame.
func (c *serverConn) preface() error {
	var said [len(http2.ClientPreface)]byte
	if _, err := io.ReadFull(c.in, said[:]); err != nil {
		return err
	}
	if !bytes.Equal(said[:], []byte(http2.ClientPreface)) {
		return connError{http2.ErrCodeProtocol, "the client does not speak HTTP/2: it did not send the connection preface"}
	}
	return c.firstSettings()
}

// over ends the connection after the reader returned err. If err is a mistake of the client, over
// reports it to the client.
func (c *serverConn) over(err error) {
	var mistake connError
	if errors.As(err, &mistake) {
		c.mu.Lock()
		last := c.last
		c.mu.Unlock()
		c.leave(last, mistake, errGone)
	}
	c.shut(errGone)
}

// errGone is the error of a call that the client has canceled, or whose client has gone.
var errGone = status.Error(codes.Canceled, context.Canceled.Error())

// settled starts the handlers of the new calls.
func (c *serverConn) settled() {
	for i, s := range c.fresh {
		c.server.start(s)
		c.fresh[i] = nil
	}
	c.fresh = c.fresh[:0]
}

// headers begins a call. A second header block on a stream holds trailers. gRPC requests have none,
// so it only ends the client's half of the stream.
func (c *serverConn) headers(h *headerBlock) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.streams[h.stream]; s != nil {
		return c.trailers(s, h)
	}
	if isNew, err := c.isNew(h.stream); !isNew {
		return err
	}
	if err := c.chargeLocked(1); err != nil {
		return err
	}
	switch {
	case c.leaving == closing && h.stream > c.final:
		c.recent.add(h.stream, true) // the client makes the call on another connection
		return nil
	case h.bad != "":
		return streamError{h.stream, http2.ErrCodeProtocol, h.bad}
	case c.running >= c.server.cfg.MaxStreams:
		return streamError{h.stream, http2.ErrCodeRefusedStream, "too many calls at once"}
	}
	s, err := c.newStream(h)
	if err != nil {
		return err
	}
	c.running++
	c.used = c.server.clock.Now()
	c.fresh = append(c.fresh, s)
	if h.end {
		c.end(&s.stream)
		return s.count(0, true)
	}
	return nil
}

// isNew reports whether a stream is new. It returns an error if the client must not use the id.
func (c *serverConn) isNew(id uint32) (bool, error) {
	if id%2 == 0 {
		return false, connError{http2.ErrCodeProtocol, "the client used an even stream id"}
	}
	if id > c.last {
		c.last = id
		return true, nil
	}
	switch found, ours := c.recent.find(id); {
	case ours:
		return false, nil // the client sent it before it read our RST_STREAM
	case found:
		return false, connError{http2.ErrCodeStreamClosed, "a HEADERS frame for a stream that has ended"}
	}
	return false, connError{http2.ErrCodeProtocol, "a new stream with an id that is lower than that of an earlier one"}
}

// trailers handles the second header block of a request.
func (c *serverConn) trailers(s *stream, h *headerBlock) error {
	switch {
	case s.ended:
		return streamError{s.id, http2.ErrCodeStreamClosed, "a HEADERS frame for a stream that has ended"}
	case h.bad != "":
		return streamError{s.id, http2.ErrCodeProtocol, h.bad}
	case !h.end:
		return streamError{s.id, http2.ErrCodeProtocol, "a second HEADERS frame that does not end the stream"}
	case len(h.fields) > 0 && h.fields[0].IsPseudo():
		return streamError{s.id, http2.ErrCodeProtocol, "trailers with the pseudo-header " + h.fields[0].Name}
	}
	c.end(s)
	return s.count(0, true)
}

// halfClosed starts the handler: the request is complete.
func (c *serverConn) halfClosed(s *stream) {
	c.mu.Lock()
	c.end(s)
	c.mu.Unlock()
	c.settled()
}

// known reports whether the client has ever opened a stream: clients use odd numbers, in order.
func (c *serverConn) known(id uint32) bool { return id%2 == 1 && id <= c.last }

// removed has nothing to do: a draining connection waits for its handlers, which outlast their streams.
func (c *serverConn) removed() {}

// setting ignores all settings but those that conn takes: the others are for clients.
func (c *serverConn) setting(http2.Setting) {}

// goAway ignores that the client makes no more calls: it will close the connection.
func (c *serverConn) goAway(*http2.GoAwayFrame) error { return nil }

// wasReset ends a call that the client has given up.
func (c *serverConn) wasReset(s *stream, _ http2.ErrCode) {
	c.abort(s, false, errGone)
}

// unwanted leaves the call to its handler.
func (c *serverConn) unwanted(s *stream, err error) {
	s.refuse(err) // the handler receives err, and returns a status
}

// aborted drops what the handler has not received, and ends its context.
func (c *serverConn) aborted(s *stream) {
	s.kill()
	s.owner.(*serverStream).cancel()
}
