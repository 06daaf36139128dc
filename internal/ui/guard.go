package ui

import (
	"crypto/rand"
	"crypto/subtle"
	"net"
	"net/http"
	"sync"
)

// A guard admits only browsers that have the link: other users of the machine reach its loopback as
// well, and so do the pages that a browser has open.
type guard struct {
	port   string
	cookie string // its name, which has the port: cookies of one host are all ports'

	mu      sync.Mutex
	token   string // of the link; empty once it was used
	session string // what the cookie holds, once there is one
}

func newGuard(port string) *guard {
	return &guard{port: port, cookie: "criproxy-ui-" + port, token: rand.Text()}
}

// redeem takes the token of a link, and returns a session for it. Each link is good for one.
func (g *guard) redeem(token string) (session string, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.token == "" || subtle.ConstantTimeCompare([]byte(token), []byte(g.token)) != 1 {
		return "", false
	}
	g.token, g.session = "", rand.Text()
	return g.session, true
}

func (g *guard) knows(r *http.Request) bool {
	c, err := r.Cookie(g.cookie)
	if err != nil {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.session != "" && subtle.ConstantTimeCompare([]byte(c.Value), []byte(g.session)) == 1
}

// isOurs reports whether a Host header names this server. A name that an attacker makes resolve to
// the loopback does not.
func (g *guard) isOurs(host string) bool {
	name, port, err := net.SplitHostPort(host)
	return err == nil && port == g.port && (name == "127.0.0.1" || name == "::1" || name == "localhost")
}

// wrap checks the origin of each request.
func (g *guard) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		switch {
		case !g.isOurs(r.Host):
			http.Error(w, "this address is not one of criproxy ui; use the link that it printed", http.StatusMisdirectedRequest)
		case r.Method != http.MethodGet:
			http.Error(w, "criproxy ui only shows; use GET", http.StatusMethodNotAllowed)
		case r.URL.Path == "/" && r.URL.Query().Has("token"):
			g.enter(w, r)
		case !g.knows(r):
			http.Error(w, "the link that criproxy ui printed is good for one browser; start it again for another", http.StatusForbidden)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// enter exchanges the token of a link for a cookie, and takes the token out of the address.
func (g *guard) enter(w http.ResponseWriter, r *http.Request) {
	session, ok := g.redeem(r.URL.Query().Get("token"))
	if ok {
		http.SetCookie(w, &http.Cookie{Name: g.cookie, Value: session, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
	}
	if ok || g.knows(r) {
		http.Redirect(w, r, "/", http.StatusSeeOther)
		return
	}
	http.Error(w, "this link was used already, or is not the one that criproxy ui printed; start it again for another", http.StatusForbidden)
}
