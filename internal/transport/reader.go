package transport

import (
	"errors"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/internal/base/recovery"
)

// settling is the source of the reader's buffer. When the buffer reads from it, the reader has
// handled all frames that have arrived: now it starts the new calls and flushes the answers
// together.
type settling struct{ *conn }

// Read does what waits for the end of a batch of frames, and then reads the next batch.
func (s settling) Read(p []byte) (int, error) {
	s.side.settled()
	s.mu.Lock()
	s.flushSettled()
	if s.err == nil {
		s.deadline()
	}
	s.mu.Unlock()
	n, err := s.nc.Read(p)
	s.heard.Store(true)
	return n, err
}

// read reads frames until the connection ends, and returns why.
func (c *conn) read() error {
	return recovery.Do("reading what a peer sends", func() error {
		for {
			if err := c.readFrame(); err != nil {
				if err = c.mistake(err); err != nil {
					return err
				}
			}
		}
	})
}

// readFrame reads one frame and handles it. within stays set between the frames of a header block: the peer must not be silent
// there, and may send no other frame.
func (c *conn) readFrame() error {
	fh, err := c.framer.ReadFrameHeader()
	if err != nil {
		return err
	}
	if !c.within {
		c.within = true
		c.begun++
	}
	switch fh.Type {
	case http2.FrameData:
		err = c.readData(fh)
	case http2.FrameHeaders, http2.FrameContinuation:
		if err = c.readHeaders(fh); !fh.Flags.Has(http2.FlagHeadersEndHeaders) {
			return err
		}
	default:
		var f http2.Frame
		if f, err = c.framer.ReadFrameForHeader(fh); err == nil {
			err = c.control(f)
		}
	}
	c.within = false
	return err
}

// mistake handles a stream error: it resets the stream. It returns any other error as a connection
// error, which ends the connection. The framer has stream errors of its own, which lack the reason.
func (c *conn) mistake(err error) error {
	var ours streamError
	if theirs := (http2.StreamError{}); errors.As(err, &theirs) {
		ours = streamError{theirs.StreamID, theirs.Code, "the frame is malformed"}
	} else if !errors.As(err, &ours) {
		return c.frameError(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// This costs as much as a call that the peer resets, because it makes us reset one.
	if err := c.chargeLocked(2); err != nil {
		return err
	}
	if s := c.streams[ours.stream]; s != nil {
		c.reset(s, ours.code, status.Error(codeOfReset(ours.code), ours.why))
	} else {
		c.out = appendReset(c.out, ours.stream, ours.code)
		c.recent.add(ours.stream, true)
	}
	return c.answered()
}

// fatal reports whether an error ends the connection.
func fatal(err error) bool {
	var s streamError
	return err != nil && !errors.As(err, &s)
}

// frameError returns an error of the framer as a connError, and other errors as they are.
func (c *conn) frameError(err error) error {
	if errors.Is(err, http2.ErrFrameTooLarge) {
		return connError{http2.ErrCodeFrameSize, "a frame is too long"}
	}
	if code := http2.ConnectionError(0); errors.As(err, &code) {
		why := "a frame is malformed"
		if detail := c.framer.ErrorDetail(); detail != nil {
			why = detail.Error()
		}
		return connError{http2.ErrCode(code), why}
	}
	return err
}

// firstSettings reads the SETTINGS frame with which the peer begins.
func (c *conn) firstSettings() error {
	fh, err := c.framer.ReadFrameHeader()
	if err != nil {
		return c.frameError(err)
	}
	if fh.Type != http2.FrameSettings || fh.Flags.Has(http2.FlagSettingsAck) {
		return connError{http2.ErrCodeProtocol, "the first frame is not a SETTINGS frame"}
	}
	f, err := c.framer.ReadFrameForHeader(fh)
	if err == nil {
		err = c.control(f)
	}
	return c.frameError(err)
}

// control handles a frame that is not DATA, HEADERS or CONTINUATION.
func (c *conn) control(f http2.Frame) error {
	if f, ok := f.(*http2.GoAwayFrame); ok {
		blame(f)
		return c.side.goAway(f)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.chargeLocked(1); err != nil {
		return err
	}
	switch f := f.(type) {
	case *http2.SettingsFrame:
		return c.settings(f)
	case *http2.PingFrame:
		if f.IsAck() {
			return c.side.pinged(true, f.Data)
		}
		before := len(c.out)
		c.out = appendPing(c.out, f.Data, http2.FlagPingAck)
		c.pongs.bytes += len(c.out) - before
		if err := c.side.pinged(false, f.Data); err != nil {
			return err
		}
		return c.answered()
	case *http2.WindowUpdateFrame:
		return c.windowUpdate(f)
	case *http2.RSTStreamFrame:
		return c.rstStream(f)
	case *http2.PriorityFrame:
		if f.StreamDep == f.StreamID {
			return streamError{f.StreamID, http2.ErrCodeProtocol, "the stream depends on itself"}
		}
	case *http2.PushPromiseFrame:
		return connError{http2.ErrCodeProtocol, "a PUSH_PROMISE frame although server push is off"}
	}
	return nil // RFC 9113 says to ignore frames of unknown types
}

// windowUpdate lets senders send more. c.mu is held, here and in the methods below.
func (c *conn) windowUpdate(f *http2.WindowUpdateFrame) error {
	n := int(f.Increment)
	if f.StreamID == 0 {
		if c.window += n; c.window > maxWindow {
			return connError{http2.ErrCodeFlowControl, "the window of the connection is too large"}
		}
		c.nudge()
		return nil
	}
	s := c.streams[f.StreamID]
	if s == nil {
		if !c.side.known(f.StreamID) {
			return connError{http2.ErrCodeProtocol, "a WINDOW_UPDATE frame for a stream that has not begun"}
		}
		return nil // the stream has just ended
	}
	if s.window += n; s.window > maxWindow {
		return streamError{s.id, http2.ErrCodeFlowControl, "the window of the stream is too large"}
	}
	if s.window > 0 {
		s.wake()
	}
	return nil
}

// rstStream ends a call that the peer has reset. For a stream that has ended already it does nothing.
func (c *conn) rstStream(f *http2.RSTStreamFrame) error {
	s := c.streams[f.StreamID]
	switch {
	case s != nil:
		c.side.wasReset(s, f.ErrCode)
	case !c.side.known(f.StreamID):
		return connError{http2.ErrCodeProtocol, "an RST_STREAM frame for a stream that has not begun"}
	}
	return nil
}

// settings applies the peer's settings: RFC 9113, section 6.5.2.
func (c *conn) settings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return nil
	}
	for i := range f.NumSettings() {
		set := f.Setting(i)
		if err := set.Valid(); err != nil {
			return err
		}
		switch set.ID {
		case http2.SettingHeaderTableSize:
			c.encoder.limit(set.Val)
		case http2.SettingMaxFrameSize:
			c.peerFrame = int(set.Val)
		case http2.SettingMaxHeaderListSize:
			c.peerHeaders = int(set.Val)
		case http2.SettingInitialWindowSize:
			if err := c.newWindow(int(set.Val)); err != nil {
				return err
			}
		default:
			c.side.setting(set)
		}
	}
	c.out = appendFrame(c.out, 0, http2.FrameSettings, http2.FlagSettingsAck, 0)
	return c.answered()
}

// newWindow sets the initial window of streams, and changes the windows of all streams by the
// difference.
func (c *conn) newWindow(n int) error {
	more := n - c.peerWindow
	if more == 0 {
		return nil
	}
	c.peerWindow = n
	if err := c.chargeLocked(len(c.streams) / 64); err != nil { // each stream costs us work
		return err
	}
	for _, s := range c.streams {
		if s.window += more; s.window > maxWindow {
			return connError{http2.ErrCodeFlowControl, "the window of a stream is too large"}
		}
		if s.window > 0 {
			s.wake()
		}
	}
	return nil
}
