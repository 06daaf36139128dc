package page

import (
	"crypto/rand"
	"crypto/subtle"
	"net"
	"net/http"
	"sync"
)

// A guard admits only the browser that has the link: other users of the machine can reach the loopback as well, and so
// can any web page in a browser on it.
type guard struct {
	port   string
	cookie string // the name of the cookie; it has the port, because all ports of a host share cookies

	mu      sync.Mutex
	token   string // the token of the link; empty once it was used
	session string // the value of the cookie; empty until the link was used
}

func newGuard(port string) *guard {
	return &guard{port: port, cookie: "criproxy-ui-" + port, token: rand.Text()}
}

// redeem exchanges the token of the link for a session. It works once.
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

// isOurs reports whether a Host header names this server. Other names are refused, because an attacker can make one
// resolve to the loopback.
func (g *guard) isOurs(host string) bool {
	name, port, err := net.SplitHostPort(host)
	return err == nil && port == g.port && (name == "127.0.0.1" || name == "::1" || name == "localhost")
}

// wrap returns a handler that checks each request before next gets it.
func (g *guard) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		switch {
		case !g.isOurs(r.Host):
			http.Error(w, "criproxy ui does not answer under this address; use the link that it printed", http.StatusMisdirectedRequest)
		case r.Method != http.MethodGet:
			http.Error(w, "criproxy ui accepts only GET", http.StatusMethodNotAllowed)
		case r.URL.Path == "/" && r.URL.Query().Has("token"):
			g.enter(w, r)
		case !g.knows(r):
			http.Error(w, "the link of criproxy ui works for one browser only; start criproxy ui again for another browser", http.StatusForbidden)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// enter exchanges the token of the link for a cookie, and redirects to an address without the token.
func (g *guard) enter(w http.ResponseWriter, r *http.Request) {
	session, ok := g.redeem(r.URL.Query().Get("token"))
	if ok {
		http.SetCookie(w, &http.Cookie{Name: g.cookie, Value: session, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
	}
	if ok || g.knows(r) {
		http.Redirect(w, r, "/", http.StatusSeeOther)
		return
	}
	http.Error(w, "this link was already used, or criproxy ui did not print it; start criproxy ui again to get a new link", http.StatusForbidden)
}
