package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// A witness notes each call as its client sees it. The calls carry their numbers, so that they can be found in a recording.
type witness struct {
	mu    sync.Mutex
	calls []*witnessed // :: number
}

type witnessed struct {
	method     string
	code       codes.Code
	from, to   time.Time
	byCriproxy bool // what the client got cannot be of its own making
}

// interceptor returns an interceptor for a client.
func (w *witness) interceptor() grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, request, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		w.mu.Lock()
		call, number := &witnessed{method: method, from: time.Now()}, len(w.calls)
		w.calls = append(w.calls, call)
		w.mu.Unlock()
		err := invoke(metadata.AppendToOutgoingContext(ctx, "witness", strconv.Itoa(number)), method, request, reply, cc, opts...)
		w.mu.Lock()
		defer w.mu.Unlock()
		call.code, call.to = status.Code(err), time.Now()
		unsure := []codes.Code{codes.Unavailable, codes.Canceled, codes.DeadlineExceeded}
		call.byCriproxy = !slices.Contains(unsure, call.code) || strings.HasPrefix(status.Convert(err).Message(), "criproxy: ")
		return err
	}
}

// clockStep is how far the clock of an event, which counts from the beginning of its call, may be off.
const clockStep = 50 * time.Millisecond

// compare returns an error unless a recorder has each call that a client has made, once, as the client saw it, and at the
// time when it made the call. A call may be missing only if it began before all that the recorder has, or where the recorder
// says that events are missing. It returns how many it has compared.
func (w *witness) compare(rec *capture.Follower, reach time.Time) (compared int, err error) {
	recorded, number := map[int]*witnessed{}, map[uint64]int{}
	var errs []error
	var gaps [][2]time.Time
	var last time.Time
	for ev := (capture.Event{}); rec.TryNext(&ev); {
		if ev.Kind == capture.Missed {
			gaps = append(gaps, [2]time.Time{last, ev.Time})
		}
		last = ev.Time
		n, known := number[ev.Call]
		switch md := ev.Metadata.Get("witness"); {
		case ev.Leg > 0:
		case ev.Kind == capture.Start && len(md) == 1:
			n, _ = strconv.Atoi(md[0])
			if recorded[n] != nil {
				errs = append(errs, fmt.Errorf("call %d is there twice", n))
			}
			number[ev.Call], recorded[n] = n, &witnessed{method: ev.Method, from: ev.Time}
		case ev.Kind == capture.End && known:
			recorded[n].code, recorded[n].to = ev.Code, ev.Time
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for n, saw := range w.calls {
		missing := saw.from.Before(reach) || slices.ContainsFunc(gaps, func(g [2]time.Time) bool {
			return saw.from.Add(-clockStep).Before(g[1]) && saw.to.Add(clockStep).After(g[0])
		})
		switch is := recorded[n]; {
		case !saw.byCriproxy || missing && (is == nil || is.to.IsZero()):
		case is == nil:
			errs = append(errs, fmt.Errorf("call %d, %s, is not there", n, saw.method))
		case is.method != saw.method || is.code != saw.code:
			errs = append(errs, fmt.Errorf("call %d is %s with %s, and was %s with %s", n, is.method, is.code, saw.method, saw.code))
		case is.from.Before(saw.from.Add(-clockStep)) || is.to.After(saw.to.Add(clockStep)) || is.to.IsZero():
			errs = append(errs, fmt.Errorf("call %d was from %s to %s, and is from %s to %s", n, saw.from, saw.to, is.from, is.to))
		default:
			compared++
		}
	}
	return compared, errors.Join(errs...)
}

func TestAWitnessNoticesWhatIsNotRecordedAsItWas(t *testing.T) {
	n := newNode(t, nil)
	var w witness
	n.connect(grpc.WithUnaryInterceptor(w.interceptor()))
	for range 2 {
		_, err := n.Version(t.Context(), &runtimeapi.VersionRequest{})
		require.NoError(t, err)
	}
	compare := func() error {
		_, err := w.compare(n.proxy.record.Follow(), n.proxy.record.Reach().Oldest)
		return err
	}
	testkit.Eventually(t, "the ends are recorded", func() bool { return compare() == nil })
	w.calls[0].code = codes.Aborted
	w.calls[1].to = w.calls[1].from.Add(-time.Hour)
	w.calls = append(w.calls, &witnessed{method: "none", byCriproxy: true, from: time.Now(), to: time.Now()})
	err := compare()
	assert.ErrorContains(t, err, "call 0 is /runtime.v1.RuntimeService/Version with OK, and was /runtime.v1.RuntimeService/Version with Aborted")
	assert.ErrorContains(t, err, "call 1 was from")
	assert.ErrorContains(t, err, "call 2, none, is not there")
}

// compare compares what is recorded with what the clients saw.
func (c *chaos) compare() {
	c.Helper()
	compared := 0
	require.EventuallyWithT(c, func(t *assert.CollectT) { // a client may have its answer before the recorder has the end of the call
		var err error
		compared, err = c.witness.compare(c.proxy.record.Follow(), c.proxy.record.Reach().Oldest)
		require.NoError(t, err, "after:\n%s", c)
	}, testkit.Patience, time.Millisecond)
	require.NoError(c, c.kept(compared), "after:\n%s", c)
}

// kept returns an error if the proxy was restarted since the step before, and has lost more than half of the calls that
// could be compared then: where the recorder says that events are missing, none need be there.
func (c *chaos) kept(compared int) error {
	before := c.compared
	c.compared.with, c.compared.calls = c.proxy, compared
	if before.with != c.proxy && 2*compared < before.calls {
		return fmt.Errorf("after a restart the recorder has %d calls, and %d before", compared, before.calls)
	}
	return nil
}
