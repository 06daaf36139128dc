package transport

import (
	"fmt"
	"time"

	"golang.org/x/net/http2"
)

// A guard limits the work that a peer can cause with little work of its own: frames that we must
// handle although they advance no call (CVE-2019-9511 to 9518), calls that the peer resets at once
// (CVE-2023-44487), and mistakes that make us reset calls (CVE-2025-8671). It is an account: each
// such frame costs; each message, each completed call, and the passing of time pay in. When the
// account is empty, the connection ends. Peers that behave stay far from that: a call pays in more
// than its window updates, pings and settings cost.
//
// conn.mu guards it.
type guard struct {
	balance int
	most    int       // upper bound of balance
	filled  time.Time // when the passing of time last paid in
}

// The payments.
const (
	guardStart  = 10_000 // first balance, and its upper bound, without the share of concurrent calls
	guardCall   = 4      // for a completed call, and for a sent message; a received message pays 1
	guardBytes  = 512    // this many bytes of messages pay 1
	guardSecond = 1_000  // for each second
)

// newGuard returns a full account. Each stream that the peer may have at once raises the bound, because all of them may begin, or
// end with a reset, at the same time.
func newGuard(streams int) guard {
	most := guardStart + 2*streams
	return guard{balance: most, most: most, filled: time.Now()}
}

// earn adds n to the account, up to its bound: a peer cannot save up for a flood.
func (g *guard) earn(n int) { g.balance = min(g.balance+n, g.most) }

// spend takes n from the account, and reports whether the balance is still positive.
func (g *guard) spend(n int) bool {
	if g.balance -= n; g.balance > 0 {
		return true
	}
	now := time.Now()
	g.earn(int(min(now.Sub(g.filled), time.Minute) * guardSecond / time.Second))
	g.filled = now
	return g.balance > 0
}

// charge charges the peer n for a frame. Its error ends the connection.
func (c *conn) charge(n int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.chargeLocked(n)
}

// chargeLocked is charge with c.mu held.
func (c *conn) chargeLocked(n int) error {
	if c.guard.spend(n) {
		return nil
	}
	return connError{http2.ErrCodeEnhanceYourCalm, "too many frames for too little work"}
}

// mostAnswers is how many answers to the peer may wait to be written.
const mostAnswers = 5_000

// answered counts a frame that the reader has appended in answer to the peer. Its error ends the
// connection: the peer makes us answer and does not read. conn.mu is held.
func (c *conn) answered() error {
	if c.answers++; c.answers <= mostAnswers {
		return nil
	}
	return connError{http2.ErrCodeEnhanceYourCalm, fmt.Sprintf("the peer has not read %d answers", c.answers)}
}
