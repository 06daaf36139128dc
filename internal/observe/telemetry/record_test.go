package telemetry

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

func TestAnExecProbeIsNotNotable(t *testing.T) {
	d, err := criadapter.Config(criadapter.Options{})
	require.NoError(t, err)
	r, err := NewRecording(&config.Config{}, d, nil)
	require.NoError(t, err)
	for method, want := range map[string]bool{
		"/runtime.v1.RuntimeService/RunPodSandbox": true, "/runtime.v1.RuntimeService/Exec": true, "/runtime.v1.ImageService/PullImage": true,
		"/runtime.v1.RuntimeService/ExecSync": false, "/runtime.v1alpha2.RuntimeService/ExecSync": false, "/runtime.v1.RuntimeService/ListContainers": false,
	} {
		assert.Equal(t, want, r.Notable(method), method)
	}
}

// A reader that asks for a method, or for failures, gets all of these calls, and not the blocks without them.
func TestAnswersLeaveOutOnlyWhatNobodyWants(t *testing.T) {
	r := &Recording{cfg: &config.Config{}, rec: capture.NewRecorder(capture.Config{Bytes: 1 << 20, Schema: muxtest.Library}), Schema: muxtest.Library}
	noise := rand.New(rand.NewPCG(1, 2))
	call := func(method string, err error) {
		_, leg := r.rec.Begin(t.Context(), capture.LegInfo{Method: muxtest.Method(method), Client: true})
		bytes := make([]byte, 1024) // a fifth of a block
		for i := range bytes {
			bytes[i] = byte(noise.Uint32())
		}
		leg.Request(muxtest.Frame(t, "GetRequest", fmt.Sprintf(`book_id: "%x"`, bytes)))
		leg.End(err, nil)
		_, _ = r.Snapshot() // it is in a block now
	}
	const calls = 80
	for i := range calls {
		switch {
		case i%20 == 15:
			call("Get", nil)
		case i == 50:
			call("Put", errors.New("no"))
		default:
			call("List", nil)
		}
	}
	// found returns how many calls of a method an answer has, and how many in all.
	found := func(query, method string) (found, all int) {
		answer := httptest.NewRecorder()
		r.ServeEvents(answer, httptest.NewRequest("GET", "/events?"+query, nil))
		events, err := capture.NewReader(answer.Body)
		require.NoError(t, err)
		began := map[uint64]bool{}
		for ev := (capture.Event{}); ; {
			if err := events.Next(&ev); errors.Is(err, io.EOF) {
				return found, all
			} else {
				require.NoError(t, err)
			}
			require.NotEqual(t, capture.Missed, ev.Kind, "a search leaves out blocks, and loses no event")
			switch {
			case ev.Kind == capture.Start:
				began[ev.Call] = true
				all++
			case ev.Kind == capture.End && began[ev.Call] && ev.Method == muxtest.Method(method):
				found++
			}
		}
	}
	for _, one := range []struct {
		query, method string
		want          int
	}{{"method=Get", "Get", 4}, {"method=Pu*|None", "Put", 1}, {"failed=true", "Put", 1}, {"failed=true&method=Put", "Put", 1}, {"method=None", "Put", 0}} {
		got, all := found(one.query, one.method)
		assert.Equal(t, one.want, got, one.query)
		assert.Less(t, all, calls*3/4, one.query)
	}
	_, all := found("", "")
	assert.Equal(t, calls, all)
}
