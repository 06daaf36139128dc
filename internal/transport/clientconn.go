package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A clientConn is the client's end of a connection. It takes calls until away is set: after a GOAWAY of the server, or when all
// stream ids are used. Then the client makes calls on another connection, and this one closes with its last call.
type clientConn struct {
	*conn
	client *Client
	scheme int // index of the :scheme field in the static table

	// conn.mu guards the fields below.
	next uint32 // the id of the next call
	away bool   // the connection accepts no more calls
	why  string // the reason, such as what the server's GOAWAY said
	last uint32 // the last stream that the server processes
}

// clientReadBuffer is larger than the server's readBuffer: a proxy has few connections to backends.
const clientReadBuffer = 16 << 10

// clientWindow is the window of a connection to a server. Received bytes are given back at once.
const clientWindow = 4 << 20

// Indexes in the static table.
const (
	schemeHTTP  = 6
	schemeHTTPS = 7
	methodPOST  = 3
)

// greet does the handshake on a new connection, and waits for the server's settings. A server that has sent none is not ready,
// even if the kernel has accepted the connection for it.
func (c *Client) greet(ctx context.Context, nc net.Conn) (*clientConn, error) {
	if deadline, ok := ctx.Deadline(); ok {
		_ = nc.SetDeadline(deadline) // reading or writing returns the error
	}
	defer context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })()
	cc := &clientConn{client: c, next: 1, last: lastStreamID, scheme: schemeHTTP}
	if c.cfg.Handshake != nil {
		secured, _, err := c.cfg.Handshake(ctx, nc)
		if err != nil {
			return nil, err
		}
		nc, cc.scheme = secured, schemeHTTPS
	}
	cc.conn = newConn(nc, cc, connConfig{
		maxMessage: c.cfg.MaxMessage, maxHeaders: c.cfg.MaxHeaders, window: clientWindow,
		budget: c.cfg.Budget, readBuffer: clientReadBuffer, streams: DefaultMaxStreams, stall: c.cfg.StallTimeout,
	})
	cc.out = append(cc.out, http2.ClientPreface...)
	cc.conn.greet(
		http2.Setting{ID: http2.SettingEnablePush, Val: 0},
		// No SETTINGS_MAX_HEADER_LIST_SIZE: a grpc-go server would fail the call instead of sending a longer list, and
		// we cut the list ourselves.
	)
	began := time.Now()
	if err := unexpected(cc.firstSettings()); errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, &SilentError{time.Since(began).Round(time.Second)}
	} else if err != nil {
		return nil, fmt.Errorf("waiting for the server's settings: %w", err)
	}
	_ = nc.SetDeadline(time.Time{}) // reading or writing returns the error
	cc.own()
	return cc, nil
}

// A SilentError says that a server accepts connections, and has answered nothing for some time: it hangs.
type SilentError struct{ Lasted time.Duration }

func (e *SilentError) Error() string { return fmt.Sprintf("%s for %s", Silent, e.Lasted) }

// Silent is how the text of a SilentError begins.
const Silent = "accepts connections, and has answered nothing"

// over ends the connection after the reader returned err. If err is a mistake of the server, over
// reports it to the server.
func (c *clientConn) over(err error) {
	text := fmt.Sprintf("error reading from server: %v", err)
	c.mu.Lock()
	if c.why != "" {
		text += ", received prior goaway: " + c.why
	}
	c.mu.Unlock()
	gone := status.Error(codes.Unavailable, text)
	var mistake connError
	if errors.As(err, &mistake) {
		c.client.lose(c)
		c.leave(0, mistake, gone)
	}
	c.shut(gone)
}

// goodbye sends GOAWAY and closes a connection that the client no longer needs.
func (c *clientConn) goodbye() {
	c.mu.Lock()
	if c.err == nil {
		c.out = appendGoAway(c.out, 0, http2.ErrCodeNo, "")
		c.flush()
	}
	c.mu.Unlock()
	c.shut(errClosed)
}

// leaveSoon accepts no more calls, because of why. c.mu is held.
func (c *clientConn) leaveSoon(why string) {
	if c.away {
		return
	}
	c.away, c.why = true, why
	c.wakeTurns()
	go c.client.lose(c)
	c.removed()
}

// goAway accepts no more calls, and ends those that the server will not process.
func (c *clientConn) goAway(f *http2.GoAwayFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.LastStreamID > c.last || f.LastStreamID%2 == 0 && f.LastStreamID != 0 {
		return connError{http2.ErrCodeProtocol, fmt.Sprintf("a GOAWAY frame with the impossible last stream %d", f.LastStreamID)}
	}
	c.last = f.LastStreamID
	why := fmt.Sprintf("code: %s", f.ErrCode)
	if len(f.DebugData()) > 0 {
		why += fmt.Sprintf(", debug data: %q", f.DebugData())
	}
	c.leaveSoon(why)
	for id, s := range c.streams {
		if id > c.last {
			s.owner.(*clientStream).unprocessed = true
			c.abort(s, false, status.Error(codes.Unavailable, "closing transport due to: the server goes away, received prior goaway: "+why))
		}
	}
	return nil
}

// removed closes the connection if it accepts no more calls and its last call has ended.
func (c *clientConn) removed() {
	if c.away && len(c.streams) == 0 && c.err == nil {
		go c.goodbye()
		return
	}
	c.nudge()
}

// settled has nothing to do: a client's calls begin in goroutines of their own.
func (c *clientConn) settled() {}

// known reports whether this client has ever opened a stream: clients use odd numbers, in order.
func (c *clientConn) known(id uint32) bool { return id%2 == 1 && id < c.next }

// setting takes the only setting that is for clients alone: how many calls the server takes at once.
func (c *clientConn) setting(s http2.Setting) {
	if s.ID == http2.SettingMaxConcurrentStreams {
		c.most = int(s.Val)
		c.nudge()
	}
}

// pinged allows every ping: the server may find out whether this end lives as often as it wants.
func (c *clientConn) pinged(bool, [8]byte) error { return nil }

// unwanted resets the call: the client has no handler that could answer.
func (c *clientConn) unwanted(s *stream, err error) {
	s.refuse(err)
	c.reset(s, http2.ErrCodeCancel, err)
}

// wasReset ends a call that the server has reset. With REFUSED_STREAM the server says that it did not process the call, which
// may then be made once more.
func (c *clientConn) wasReset(s *stream, code http2.ErrCode) {
	to := codeOfReset(code)
	if deadline, ok := s.ctx.Deadline(); ok && to == codes.Canceled && !deadline.After(time.Now()) {
		to = codes.DeadlineExceeded // the server noticed the deadline before we did
	}
	s.owner.(*clientStream).unprocessed = code == http2.ErrCodeRefusedStream
	c.abort(s, false, status.Errorf(to, "stream terminated by RST_STREAM with error code: %v", code))
}

// halfClosed ends a call whose reply ended without trailers.
func (c *clientConn) halfClosed(s *stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end(s)
	cs := s.owner.(*clientStream)
	if cs.notGRPC == nil {
		cs.notGRPC = status.New(codes.Internal, "server closed the stream without sending trailers")
	}
	cs.close(cs.notGRPC)
}

// aborted ends the wait for a header that will not come.
func (c *clientConn) aborted(s *stream) { s.owner.(*clientStream).head() }
