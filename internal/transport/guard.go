package transport

import (
	"fmt"
	"time"

	"golang.org/x/net/http2"
)

// A guard counts what a peer makes us do for little work of its own: frames that are
// answered or looked at and bring no call forward (CVE-2019-9511 to 9518), calls that are
// taken back as soon as they are made (CVE-2023-44487), and mistakes that make us take
// calls back (CVE-2025-8671). It is an account: each such frame costs, each message and
// each call that ends well pays in, and a little comes in with time. A peer whose account
// is empty is cut off. Peers that behave do not come near: a call brings more than the
// window updates, pings and settings that come with it.
//
// conn.mu guards it.
type guard struct {
	balance int
	most    int
	filled  time.Time // when time last paid in
}

// What is paid in.
const (
	guardStart  = 10_000 // and the most there can be, beside what calls at once may need
	guardCall   = 4      // for a call that ends well, and for a message that is sent; 1 for one that is received
	guardBytes  = 512    // this many bytes of messages pay 1
	guardSecond = 1_000  // with each second
)

func newGuard(streams int) guard {
	most := guardStart + 2*streams
	return guard{balance: most, most: most, filled: time.Now()}
}

func (g *guard) earn(n int) { g.balance = min(g.balance+n, g.most) }

// spend reports whether there is enough for n.
func (g *guard) spend(n int) bool {
	if g.balance -= n; g.balance > 0 {
		return true
	}
	now := time.Now()
	g.earn(int(min(now.Sub(g.filled), time.Minute) * guardSecond / time.Second))
	g.filled = now
	return g.balance > 0
}

// nuisance is what the reader says of a frame that costs n. Its error ends the connection.
func (c *conn) nuisance(n int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nuisanceLocked(n)
}

func (c *conn) nuisanceLocked(n int) error {
	if c.guard.spend(n) {
		return nil
	}
	return connError{http2.ErrCodeEnhanceYourCalm, "too many frames for too little work"}
}

// mostAnswers is how many answers to a peer may wait to be written.
const mostAnswers = 5_000

// answered is called when the reader has appended a frame for the peer. Its error ends the
// connection: the peer makes us answer and does not read. conn.mu is held.
func (c *conn) answered() error {
	if c.answers++; c.answers <= mostAnswers {
		return nil
	}
	return connError{http2.ErrCodeEnhanceYourCalm, fmt.Sprintf("%d answers have not been read", c.answers)}
}
