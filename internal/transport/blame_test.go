package transport_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"golang.org/x/net/http2"

	"github.com/criproxy/criproxy/internal/transport"
)

// A server and a client that end their connection because of what this process sent are reported. Those that leave for
// another reason are not.
func TestAPeerThatFindsAMistakeIsReported(t *testing.T) {
	const mark = "of this test"
	said := make(chan string, 10)
	transport.Blamed(func(why string) {
		if strings.Contains(why, mark) {
			said <- why
		}
	})
	t.Cleanup(func() { transport.Blamed(func(string) {}) })
	leave := func(p *rawPeer, who string) {
		for _, code := range []http2.ErrCode{http2.ErrCodeNo, http2.ErrCodeEnhanceYourCalm, http2.ErrCodeFlowControl} {
			_ = p.framer.WriteGoAway(1<<31-1, code, []byte("a "+who+" "+mark))
		}
	}
	hears := func(want string) {
		select {
		case got := <-said:
			assert.Equal(t, want, got)
		case <-time.After(20 * time.Second):
			assert.Fail(t, "nobody was told", want)
		}
	}
	c := newClient(t, transport.ClientConfig{Dial: dialer(scripted(t, func(p *rawPeer, call *http2.MetaHeadersFrame) {
		leave(p, "server")
		p.good(call.StreamID)
	}))})
	assert.NoError(t, invoke(t, c))
	hears(`FLOW_CONTROL_ERROR "a server of this test"`)

	l := listen(t)
	serveOurs(t, l, nil)
	p := rawClient(t, l)
	leave(p, "client")
	assert.NoError(t, p.say())
	hears(`FLOW_CONTROL_ERROR "a client of this test"`)
}
