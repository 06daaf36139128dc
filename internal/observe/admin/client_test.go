package admin

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/criproxy/criproxy/internal/testing/testkit"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// The server of a request that ends may answer with whatever it has by then, and net/http prefers an answer to the end of
// the request. At the end of its time a node that hung had "unexpected end of JSON input".
func TestAnAnswerToARequestThatHasEndedIsNone(t *testing.T) {
	for _, address := range []string{"/run/a.sock", "ssh://node"} {
		for _, answer := range []string{"", `{"version":"1"}`} {
			testkit.OnSimulatedClock(t, func(t *testing.T) {
				c := NewClient(address)
				c.http.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
					<-r.Context().Done()
					return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(answer))}, nil
				})
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, err := c.Read(ctx, "version", &Version{})
				assert.ErrorIs(t, err, context.DeadlineExceeded)
			})
		}
	}
}
