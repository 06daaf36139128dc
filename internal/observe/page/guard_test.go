package page

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// ask makes a request of a guard that lets in to a page which says "in".
func ask(g *guard, method, target, host string, cookies ...*http.Cookie) *http.Response {
	r := httptest.NewRequest(method, target, nil)
	r.Host = host
	for _, c := range cookies {
		r.AddCookie(c)
	}
	w := httptest.NewRecorder()
	g.wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("in")) })).ServeHTTP(w, r)
	return w.Result()
}

const here = "127.0.0.1:4711"

func TestTheLinkIsGoodForOneBrowser(t *testing.T) {
	g := newGuard("4711")
	link := "/?token=" + g.token
	assert.Equal(t, http.StatusForbidden, ask(g, "GET", "/", here).StatusCode)
	assert.Equal(t, http.StatusForbidden, ask(g, "GET", "/?token=x", here).StatusCode)
	assert.Equal(t, http.StatusForbidden, ask(g, "GET", "/?token=", here).StatusCode)

	first := ask(g, "GET", link, here)
	assert.Equal(t, http.StatusSeeOther, first.StatusCode)
	assert.Equal(t, "/", first.Header.Get("Location"), "the token is in no address that the browser keeps")
	require.Len(t, first.Cookies(), 1)
	cookie := first.Cookies()[0]
	assert.True(t, cookie.HttpOnly)
	assert.Equal(t, http.SameSiteStrictMode, cookie.SameSite)

	assert.Equal(t, http.StatusOK, ask(g, "GET", "/", here, cookie).StatusCode)
	assert.Equal(t, http.StatusOK, ask(g, "GET", "/stream", here, cookie).StatusCode)
	assert.Equal(t, http.StatusForbidden, ask(g, "GET", link, here).StatusCode, "used already")
	assert.Equal(t, http.StatusSeeOther, ask(g, "GET", link, here, cookie).StatusCode, "by this browser")
	assert.Equal(t, http.StatusForbidden, ask(g, "GET", "/", here, &http.Cookie{Name: cookie.Name, Value: "x"}).StatusCode)
	assert.Equal(t, http.StatusForbidden, ask(g, "GET", "/", here, &http.Cookie{Name: cookie.Name, Value: ""}).StatusCode)
}

func TestAHostThatIsNotTheLoopbackIsRefused(t *testing.T) {
	g := newGuard("4711")
	for _, host := range []string{"evil.example:4711", "127.0.0.1", "127.0.0.1:80", "localhost.evil.example:4711", "", "[::1]", "10.0.0.1:4711"} {
		answer := ask(g, "GET", "/?token="+g.token, host)
		assert.Equal(t, http.StatusMisdirectedRequest, answer.StatusCode, host)
		assert.Empty(t, answer.Cookies(), host)
	}
	assert.Equal(t, http.StatusMethodNotAllowed, ask(g, "POST", "/", here).StatusCode)
	assert.Equal(t, http.StatusSeeOther, ask(g, "GET", "/?token="+g.token, "localhost:4711").StatusCode, "nothing of that used the token")
}

func TestItListensOnTheLoopbackOnly(t *testing.T) {
	for _, address := range []string{"0.0.0.0:0", ":0", "192.0.2.1:80", "[::]:0", "example.com:80", "127.0.0.1"} {
		_, err := Listen(address)
		assert.ErrorContains(t, err, "-listen "+address+": ", address)
	}
	l, err := Listen("127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
}
