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

// A conn is what both ends of a connection have in common.
type conn struct {
	nc   net.Conn
	cfg  connConfig
	side side

	// The reader's alone.
	in       *bufio.Reader
	framer   *http2.Framer // for all but DATA and header blocks
	decoder  *hpack.Decoder
	block    headerBlock
	long     []byte    // a payload that is longer than the buffer of in
	peeked   int       // bytes of in that payload has returned
	within   bool      // we are within a frame, or within a header block
	begun    uint      // how many frames and header blocks have begun
	armed    time.Time // when the deadline of reads was set; zero: there is none
	armedFor uint      // begun, at that time
	raw      rawWriter // for the goroutine that has set busy

	heard atomic.Bool // something has come, for keepalive

	mu      sync.Mutex // held for moments only, never while something is read, written, or waited for
	streams map[uint32]*stream
	recent  recentStreams
	guard   guard
	pulse   *time.Timer // of keepalive; nil: there is none
	err     error       // why the connection has ended; nil: it has not
	encoder *encoder
	scratch []byte // a header block that is encoded

	// What we send: writer.go.
	out     []byte                           // whole frames that wait to be written
	spare   []byte                           // what out was before
	answers int                              // to the peer, in out
	pongs   pongs                            // of them
	busy    bool                             // a goroutine is writing
	soon    bool                             // a goroutine is about to write
	idle    chan struct{}                    // closed when busy is unset; nil if no goroutine waits for that
	parts   [][]byte                         // scratch of the goroutine that writes
	heads   [mostFrames][frameHeaderLen]byte // likewise
	queue   []*stream                        // senders that wait for the connection, in their order
	turns   []chan struct{}                  // of header blocks that wait for the connection, in their order
	most    int                              // calls that there may be at once; a server refuses calls instead
	window  int                              // what the peer lets us send on all streams together; see flow.go
	spoke   bool                             // a frame of a call was sent since pingPolicy last unset this
	broken  error                            // why nothing can be written

	// What the peer says of itself, in its settings.
	peerWindow  int // of a new stream
	peerFrame   int // the longest frame that it takes
	peerHeaders int // the longest header list that it takes

	// What we receive: flow.go.
	open   int // what the peer may send on all streams together
	owed   int // what has come, and was not given back to it; negative: more was given back
	parked int // what waits for memory, on all streams together
}

// A connConfig is what the two ends say of their connections.
type connConfig struct {
	maxMessage int
	maxHeaders int  // bytes of a header list
	window     int  // of the connection
	strict     bool // see flow.go
	budget     Budget
	readBuffer int
	streams    int // at once, for the guard
	stall      time.Duration
	pingIdle   bool // for keepalive: ping without calls as well
}

// The side of a connection is a server or a client. The reader calls its methods, except where a
// comment says otherwise. They must not wait.
type side interface {
	headers(h *headerBlock) error      // a header block is complete
	halfClosed(s *stream)              // the peer has ended its half of s with a DATA frame
	settled()                          // all that had come has been worked on
	goAway(f *http2.GoAwayFrame) error // the peer wants to end the connection

	// Any goroutine may call these, with conn.mu held.
	known(id uint32) bool                   // there is, or was, such a stream
	wasReset(s *stream, code http2.ErrCode) // by the peer
	unwanted(s *stream, err error)          // what comes for s cannot be received
	aborted(s *stream)                      // s has ended before its time
	removed()                               // a stream is no longer one of the connection's
	setting(http2.Setting)                  // of the peer, about calls
	pinged(ack bool, data [8]byte) error    // a PING has come
	speaksSoon() bool                       // something is likely to be written before long
}

var errSilent = errors.New("the other end has not answered a ping")

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
	c.block.max = cfg.maxHeaders
	c.decoder = hpack.NewDecoder(tableSize, func(f hpack.HeaderField) { c.block.add(f) })
	// A string that is too long for the list makes the list too long; only one that is far too
	// long ends the connection.
	c.decoder.SetMaxStringLength(2 * cfg.maxHeaders)
	c.raw.open(nc)
	return c
}

// own takes the socket over from Go's poller, if it is a unix socket, once the handshake is done. Nobody
// else may know of the connection yet.
func (c *conn) own() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy {
		return // a peer that does not read its settings is in no hurry
	}
	c.nc = ownSocket(c.nc)
	c.raw.open(c.nc)
}

// greet appends what a connection begins with: our settings, and our window.
func (c *conn) greet(settings ...http2.Setting) {
	c.out = appendSettings(c.out, settings...)
	if n := c.cfg.window - firstWindow; n > 0 {
		c.out = appendWindowUpdate(c.out, 0, n)
	}
}

// shut ends the connection: all calls on it with err. It may be called again.
func (c *conn) shut(err error) {
	c.mu.Lock()
	if c.err == nil {
		c.fail(err)
	}
	if c.pulse != nil {
		c.pulse.Stop()
	}
	if c.pongs.timer != nil {
		c.pongs.timer.Stop()
	}
	c.mu.Unlock()
	_ = c.nc.Close() // whatever it says, nothing more can be done
}

// fail ends all calls with err, and lets no call begin. c.mu is held.
func (c *conn) fail(err error) {
	c.err = err
	for _, s := range c.streams {
		c.abort(s, true, err)
	}
	c.wakeTurns()
}

// leave reports the peer's mistake to it, gives it time to read that, and closes the connection;
// calls on it end with err. Only the reader calls leave.
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
// that holds unread bytes would discard them.
const lingerTime = time.Second

// lingerBytes bounds what is read meanwhile.
const lingerBytes = 128 << 10

func (c *conn) linger(idle <-chan struct{}) {
	deadline := time.Now().Add(lingerTime)
	_ = c.nc.SetDeadline(deadline) // fails if it is closed, as reading will
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
