package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// A clientConn is a connection to a server.
type clientConn struct {
	*conn
	client *Client
	peer   peer.Peer
	scheme int // in the static table

	// conn.mu guards what follows.
	next uint32 // the id of the next call
	away bool   // no more calls are begun
	why  string // what the server said of that
	last uint32 // the last call that it takes
}

// clientReadBuffer is larger than that of servers: there are few clients.
const clientReadBuffer = 16 << 10

// clientWindow is that of a connection to a server. It is given back at once.
const clientWindow = 4 << 20

// HTTP and POST in the static table.
const (
	schemeHTTP  = 6
	schemeHTTPS = 7
	methodPOST  = 3
)

// greet makes a connection ready, and waits until the server says that it is one.
func (c *Client) greet(ctx context.Context, nc net.Conn) (*clientConn, error) {
	if deadline, ok := ctx.Deadline(); ok {
		_ = nc.SetDeadline(deadline) // what is read or written says it
	}
	defer context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })()
	cc := &clientConn{client: c, next: 1, last: lastStreamID, scheme: schemeHTTP}
	if c.cfg.Handshake != nil {
		secured, info, err := c.cfg.Handshake(ctx, nc)
		if err != nil {
			return nil, err
		}
		nc, cc.peer.AuthInfo, cc.scheme = secured, info, schemeHTTPS
	}
	cc.peer.Addr, cc.peer.LocalAddr = nc.RemoteAddr(), nc.LocalAddr()
	cc.conn = newConn(nc, cc, connConfig{
		maxMessage: c.cfg.MaxMessage, maxHeaders: c.cfg.MaxHeaders, window: clientWindow,
		budget: c.cfg.Budget, readBuffer: clientReadBuffer, streams: DefaultMaxStreams, stall: c.cfg.StallTimeout,
	})
	cc.out = append(cc.out, http2.ClientPreface...)
	cc.conn.greet(
		http2.Setting{ID: http2.SettingEnablePush, Val: 0},
		http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: uint32(c.cfg.MaxHeaders)},
	)
	if err := cc.firstSettings(); err != nil {
		return nil, fmt.Errorf("waiting for the server's settings: %w", err)
	}
	_ = nc.SetDeadline(time.Time{}) // what is read or written says it
	cc.own()
	cc.keepalive(c.cfg.PingAfter, c.cfg.PingTimeout)
	return cc, nil
}

func (c *clientConn) firstSettings() error {
	fh, err := c.framer.ReadFrameHeader()
	if err != nil {
		return c.frameError(unexpected(err))
	}
	if fh.Type != http2.FrameSettings || fh.Flags.Has(http2.FlagSettingsAck) {
		return connError{http2.ErrCodeProtocol, "the first frame has no settings"}
	}
	f, err := c.framer.ReadFrameForHeader(fh)
	if err == nil {
		err = c.control(f)
	}
	return c.frameError(err)
}

// over ends the connection, because of err.
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

// goodbye closes a connection that the client does not want any more.
func (c *clientConn) goodbye() {
	c.mu.Lock()
	if c.err == nil {
		c.out = appendGoAway(c.out, 0, http2.ErrCodeNo, "")
		c.flush()
	}
	c.mu.Unlock()
	c.shut(errClosed)
}

// leaveSoon begins no more calls. c.mu is held.
func (c *clientConn) leaveSoon(why string) {
	if c.away {
		return
	}
	c.away, c.why = true, why
	c.wakeTurns()
	go c.client.lose(c)
	c.removed()
}

// goAway begins no more calls, and ends those that the server has not begun.
func (c *clientConn) goAway(f *http2.GoAwayFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.LastStreamID > c.last || f.LastStreamID%2 == 0 && f.LastStreamID != 0 {
		return connError{http2.ErrCodeProtocol, fmt.Sprintf("a GOAWAY frame with the last stream %d", f.LastStreamID)}
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

// removed closes the connection when its last call has ended, if there are to be no more.
func (c *clientConn) removed() {
	if c.away && len(c.streams) == 0 && c.err == nil {
		go c.goodbye()
		return
	}
	c.nudge()
}

func (c *clientConn) settled() {}

func (c *clientConn) known(id uint32) bool { return id%2 == 1 && id < c.next }

func (c *clientConn) setting(s http2.Setting) {
	if s.ID == http2.SettingMaxConcurrentStreams {
		c.most = int(s.Val)
		c.nudge()
	}
}

func (c *clientConn) pinged(bool, [8]byte) error { return nil }

func (c *clientConn) unwanted(s *stream, err error) {
	s.refuse(err)
	c.reset(s, http2.ErrCodeCancel, err)
}

func (c *clientConn) wasReset(s *stream, code http2.ErrCode) {
	to := codeOfReset(code)
	if deadline, ok := s.ctx.Deadline(); ok && to == codes.Canceled && !deadline.After(time.Now()) {
		to = codes.DeadlineExceeded // which the server has seen before we have
	}
	s.owner.(*clientStream).unprocessed = code == http2.ErrCodeRefusedStream
	c.abort(s, false, status.Errorf(to, "stream terminated by RST_STREAM with error code: %v", code))
}

// halfClosed is the end of a reply without a status.
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

func (c *clientConn) aborted(s *stream) {
	cs := s.owner.(*clientStream)
	if cs.heads != nil && !cs.headed {
		cs.headed = true
		close(cs.heads)
	}
}
