package transport

import (
	"bufio"
	"errors"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// A conn is the part of a connection that serverConn and clientConn share. Three kinds of goroutines use it:
//
//   - The reader, one for as long as the connection lasts. It alone uses the first group of fields. For each frame it holds
//     mu for a moment, and it waits for nothing but the peer's next bytes.
//   - Senders and receivers, which are the goroutines of calls. They wait on channels of their streams, without mu.
//   - The writer: whoever has set busy. It has taken out away, and writes it without mu, while others append to a new out.
//
// A connection always ends with the reader: it returns an error, and over ends all calls and closes nc. Whatever else ends a
// connection closes nc, so that the reader notices: shut, a write that fails, a ping that gets no answer. err is set once.
// From then on no call begins, and every stream is gone. broken says that nothing can be written, which may be known earlier.
type conn struct {
	nc   net.Conn
	cfg  connConfig
	side side

	// Only the reader uses these.
	in       *bufio.Reader
	framer   *http2.Framer // for all frames but DATA, HEADERS and CONTINUATION
	decoder  *hpack.Decoder
	block    headerBlock
	long     []byte    // holds a payload that is longer than the buffer of in
	peeked   int       // length of the payload that is still in the buffer of in
	within   bool      // the reader is within a frame or a header block
	begun    uint      // number of frames and header blocks that have begun
	armed    time.Time // when the read deadline was set; zero: there is none
	armedFor uint      // value of begun at that time
	raw      rawWriter // for the goroutine that has set busy

	heard atomic.Bool // something has been read since keepalive last looked

	mu      sync.Mutex // never held while a goroutine reads, writes, or waits
	streams map[uint32]*stream
	recent  recentStreams
	guard   guard
	pinger  *time.Timer // of keepalive; nil: there is none
	err     error       // why the connection has ended; nil: it has not
	encoder *encoder
	scratch []byte // buffer for encoding a header block

	// Sending: writer.go and send.go.
	out      []byte                           // whole frames that wait to be written
	spare    []byte                           // a free buffer for out
	answers  int                              // number of frames in out that answer the peer
	pongs    pongs                            // of these, the answers to pings
	busy     bool                             // a goroutine is writing
	soon     bool                             // a goroutine is about to write
	idle     chan struct{}                    // closed when all has been written; nil if no goroutine waits for that
	parts    [][]byte                         // scratch of the goroutine that writes
	heads    [mostFrames][frameHeaderLen]byte // likewise
	queue    []*stream                        // senders that wait for the connection, in order
	turns    []chan struct{}                  // header blocks that wait for the connection, in order
	most     int                              // how many calls the client may have at once; a server refuses calls instead
	window   int                              // bytes that the peer lets us send on all streams together
	sentData bool                             // a frame of a call was sent since pingPolicy last cleared this
	broken   error                            // why nothing can be written

	// The peer's settings.
	peerWindow  int // window of a new stream
	peerFrame   int // the longest frame that the peer accepts
	peerHeaders int // the longest header list that the peer accepts

	// Receiving: flow.go.
	open     int // bytes that the peer may send on all streams together
	toReturn int // bytes to give back to the peer's window; negative: too many were given back
	parked   int // bytes that wait for memory, on all streams together
}

// A connConfig says how server and client connections differ. It does not change once the connection has begun.
type connConfig struct {
	maxMessage int
	maxHeaders int  // bytes of a header list
	window     int  // of the connection
	strict     bool // see flow.go
	budget     Budget
	readBuffer int
	streams    int // how many there may be at once, for the guard
	stall      time.Duration
}

// A side is the server's or the client's part of a connection. The reader calls its methods, except
// where a comment says otherwise. They must not wait.
type side interface {
	headers(h *headerBlock) error      // a header block is complete
	halfClosed(s *stream)              // the peer has ended its half of s with a DATA frame
	settled()                          // the reader has handled all frames that have arrived
	goAway(f *http2.GoAwayFrame) error // a GOAWAY frame has arrived

	// Any goroutine may call these, with conn.mu held.
	known(id uint32) bool                   // reports whether the stream exists or has existed
	wasReset(s *stream, code http2.ErrCode) // the peer has reset s
	unwanted(s *stream, err error)          // the messages of s cannot be received, because of err
	aborted(s *stream)                      // s has ended early
	removed()                               // a stream was removed from the connection
	setting(http2.Setting)                  // a setting has arrived that conn does not handle
	pinged(ack bool, data [8]byte) error    // a PING frame has arrived
	writesSoon() bool                       // reports whether something is likely to be written soon
}

var errSilent = errors.New("the peer has not answered a ping")

// newConn returns a connection that has sent nothing yet. The windows are those with which HTTP/2 begins.
func newConn(nc net.Conn, side side, cfg connConfig) *conn {
	c := &conn{
		nc: nc, side: side, cfg: cfg,
		streams: map[uint32]*stream{}, encoder: newEncoder(), guard: newGuard(cfg.streams),
		window: firstWindow, open: cfg.window, most: math.MaxInt,
		peerWindow: firstWindow, peerFrame: smallestFrame, peerHeaders: math.MaxInt,
	}
	c.in = bufio.NewReaderSize(settling{c}, cfg.readBuffer)
	c.framer = http2.NewFramer(nil, c.in)
	c.framer.SetMaxReadFrameSize(smallestFrame)
	c.block.max, c.block.reply = cfg.maxHeaders, !cfg.strict
	c.decoder = hpack.NewDecoder(tableSize, func(f hpack.HeaderField) { c.block.add(f) })
	// A string that does not fit into the header list makes the list too long, which ends the call.
	// Only a string that is far too long ends the connection.
	c.decoder.SetMaxStringLength(c.block.longest())
	c.raw.open(nc)
	return c
}

// own takes a unix socket over from Go's poller, once the handshake is done. No other goroutine may
// use the connection yet.
func (c *conn) own() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy {
		return // the peer has not read our settings: it is slow anyway
	}
	c.nc = ownSocket(c.nc)
	c.raw.open(c.nc)
}

// greet appends the first frames of a connection: our settings, and our window. The caller must not have sent any other frame
// of HTTP/2.
func (c *conn) greet(settings ...http2.Setting) {
	c.out = appendSettings(c.out, settings...)
	if n := c.cfg.window - firstWindow; n > 0 {
		c.out = appendWindowUpdate(c.out, 0, n)
	}
}

// shut closes the connection and ends all calls on it with err. It may be called more than once.
func (c *conn) shut(err error) {
	c.mu.Lock()
	if c.err == nil {
		c.fail(err)
	}
	if c.pinger != nil {
		c.pinger.Stop()
	}
	if c.pongs.timer != nil {
		c.pongs.timer.Stop()
	}
	c.mu.Unlock()
	_ = c.nc.Close() // an error changes nothing
}

// fail ends all calls with err and accepts no more calls. c.mu is held.
func (c *conn) fail(err error) {
	c.err = err
	for _, s := range c.streams {
		c.abort(s, true, err)
	}
	c.wakeTurns()
}

// leave reports a mistake of the peer in a GOAWAY frame, and gives the peer time to read it. Calls
// on the connection end with err. The caller then closes the connection. Only the reader calls
// leave.
func (c *conn) leave(last uint32, mistake connError, err error) {
	c.mu.Lock()
	if c.err != nil || c.broken != nil {
		c.mu.Unlock()
		return
	}
	c.out = appendGoAway(c.out, last, mistake.code, mistake.why)
	c.fail(err)
	c.flush()
	idle := c.untilIdle()
	c.mu.Unlock()
	c.linger(idle)
}

// lingerTime is how long we wait for the peer to read our last frames. Closing a connection
// with unread input would discard them.
const lingerTime = time.Second

// lingerBytes bounds how much we read meanwhile.
const lingerBytes = 128 << 10

// linger waits until the last frames are written, which idle says, and then until the peer closes the connection, sends too
// much, or takes too long.
func (c *conn) linger(idle <-chan struct{}) {
	deadline := time.Now().Add(lingerTime)
	_ = c.nc.SetDeadline(deadline) // fails if nc is closed; so does reading
	if idle != nil {
		<-idle
	}
	half, ok := c.nc.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	scrap := make([]byte, 4<<10)
	for n, total := 0, 0; total < lingerBytes; total += n {
		var err error
		if n, err = c.nc.Read(scrap); err != nil {
			return
		}
	}
}
