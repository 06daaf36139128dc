package backend_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/internal/backend"
)

func TestABackendWhoseListsAreLateIsNeverGone(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, nil)
		n.when(func(ctx context.Context, method string) error {
			if method == "Bind" {
				return hang(ctx, method)
			}
			return only("List", taking(2500*time.Millisecond))(ctx, method)
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- w.bind(ctx, "a") }()
		for range 10 * 60 {
			time.Sleep(100 * time.Millisecond)
			require.NotEqual(t, backend.Gone, w.State().Condition, "%v", w.State().Err)
			began := time.Now()
			w.lists(t, `books {id: "a"}`)
			require.LessOrEqual(t, time.Since(began), backend.DefaultBudget)
		}
		assert.Empty(t, ended, "the call under way goes on")
		cancel()
		<-ended
	}, "a")
}

func TestOneAnswerInTimeEndsNoSlowness(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, func(c *settings) {
			c.Interval, c.Spec.Lists[0].Every = 8*time.Second, 8*time.Second // and no client asks more often
		})
		n.when(only("List", taking(3*time.Second)))
		_, err := w.list(t, "")
		require.NoError(t, err)
		w.until(t, backend.Slow)
		time.Sleep(10 * time.Second)
		n.library.called("List")
		n.when(nil)
		for began := time.Now(); w.State().Condition != backend.Up; time.Sleep(time.Second) {
			require.Less(t, time.Since(began), 2*time.Minute, "it is up again")
		}
		assert.GreaterOrEqual(t, n.library.called("List"), 3, "fewer would make it slow and up in turn")
	}, "a")
}

// containerd answers so when its CRI plugin has gone, while it still answers Version.
func TestABackendThatLosesItsListsIsNotUp(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, nil)
		n.when(only("List", func(context.Context, string) error { return status.Error(codes.Unimplemented, "unknown service") }))
		w.lists(t, `books {id: "a"}`)
		assert.Equal(t, backend.Slow, w.State().Condition)
	}, "a")
}

func TestASlowBackendsListShowsAClientsChange(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, nil)
		n.when(only("List", taking(4*time.Second)))
		_, err := w.list(t, "")
		require.NoError(t, err)
		w.until(t, backend.Slow)
		require.NoError(t, w.bind(t.Context(), "a"))
		n.library.with(func() { n.library.books["a"] = `title: "bound"` })
		got, err := w.list(t, "")
		require.NoError(t, err)
		assert.Contains(t, got, `title: "bound"`)
	}, "a")
}

// A list of all backends took 10 seconds while a change to one that hangs had failed.
func TestAFailedChangeDelaysNoList(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, nil)
		n.when(hang)
		hurried, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.Equal(t, codes.DeadlineExceeded, status.Code(w.bind(hurried, "a")))
		for range 3 {
			began := time.Now()
			w.lists(t, `books {id: "a"}`)
			assert.LessOrEqual(t, time.Since(began), backend.DefaultBudget)
			assert.NotEqual(t, backend.Gone, w.State().Condition)
		}
	}, "a")
}

// What a client was told is known without the backend.
func TestAConfirmedRemovalDelaysNoList(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, removing)
		n.library.with(func() { delete(n.library.books, "a") }) // Run lists again at once, perhaps before the library hangs
		require.NoError(t, w.bind(t.Context(), "a"))
		n.when(hang)
		began := time.Now()
		w.lists(t, `books {id: "b"}`)
		assert.LessOrEqual(t, time.Since(began), backend.DefaultBudget)
	}, "a", "b")
}

func TestABackendThatNeverAnsweredIsNotEmpty(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		n.when(hang)
		w := n.watch(t, nil)
		got, err := w.list(t, "")
		assert.Equal(t, codes.Unavailable, status.Code(err), "got %q", got)
	}, "a")
}

func TestThePrimaryIsNeverLeftOut(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		n.down = true
		w := n.watch(t, func(c *settings) { c.Primary = true })
		got, err := w.list(t, "")
		assert.Equal(t, codes.Unavailable, status.Code(err), "got %q", got)
	})
}

func TestASecondHangIsFoundAsSoonAsTheFirst(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, nil)
		for _, lasts := range []time.Duration{38 * time.Second, 60 * time.Second} {
			began := time.Now()
			thaw := n.freezes()
			w.until(t, backend.Gone)
			assert.Less(t, time.Since(began), backend.DefaultSilence+5*time.Second)
			time.Sleep(lasts - time.Since(began))
			n.when(nil)
			thaw()
			w.until(t, backend.Up)
			time.Sleep(30 * time.Second)
		}
	}, "a")
}

func TestAHangEndsTheCallsOfBeforeAReload(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, nil)
		n.when(hang)
		began := time.Now()
		ended := make(chan error)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		go func() { ended <- w.bind(ctx, "a") }()
		time.Sleep(time.Millisecond)
		w.Retire()
		assert.Equal(t, codes.Unavailable, status.Code(<-ended))
		assert.Less(t, time.Since(began), backend.DefaultSilence+5*time.Second)
	}, "a")
}

func TestAWatchThatBlocksStopsNoCall(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		release := make(chan struct{})
		w := n.watch(t, func(c *settings) { c.Watch = func(backend.State) { <-release } })
		n.goes(t, w)
		w.lists(t, `books {id: "a"}`)
		close(release)
	}, "a")
}

// A runtime that is not installed has no pods. The process before and after a handover agree.
func TestAnAbsentBackendStaysSoOverAHandover(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "known")
	require.NoError(t, os.WriteFile(broken, []byte("broken"), 0o600))
	for path, want := range map[string]codes.Code{"": codes.OK, broken: codes.Unavailable} {
		inNoTime(t, func(t *testing.T, n *near) {
			n.down = true
			before := n.watch(t, func(c *settings) { c.Backend = backend.Open("beta.io", backend.File{Path: path}) })
			_, err := before.list(t, "")
			require.Equal(t, want, status.Code(err))
			_, err = n.successor(t, before, nil).list(t, "")
			assert.Equal(t, want, status.Code(err), "%v", err)
		})
	}
}

// A runtime that hangs, and did for the process before, costs no call of the next one any time, and is said to be gone still.
func TestAnOutageOutlastsItsProcess(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		old := n.watch(t, nil)
		thaw := n.freezes()
		since := old.until(t, backend.Gone)
		w := n.successor(t, old, func(c *settings) { c.Before = since })
		began := time.Now()
		w.lists(t, `books {id: "a"}`)
		assert.Equal(t, codes.Unavailable, status.Code(w.bind(t.Context(), "a")))
		assert.Equal(t, began, time.Now())
		time.Sleep(5 * time.Minute)
		require.Len(t, w.states, 1, "once")
		still := <-w.states
		assert.True(t, still.First && still.Since.Equal(since.Since))
		assert.Equal(t, since.Err, still.Err)
		thaw()
		w.until(t, backend.Up)
	}, "a")
}

// After a handover, the log said only of a slow runtime whose lists came late that it was still slow, and the history went on
// to call one gone that had come back without lists.
func TestTheNextConnectionTellsOfABackendWhoseListsNeverCome(t *testing.T) {
	for name, fault := range map[string]func(context.Context, string) error{
		"hangs": hang, "fails": func(context.Context, string) error { return status.Error(codes.Internal, "no space left on device") },
	} {
		for _, was := range []backend.Condition{backend.Slow, backend.Gone} {
			t.Run(name+", was "+was.String(), func(t *testing.T) {
				inNoTime(t, func(t *testing.T, n *near) {
					old := n.watch(t, nil)
					if n.when(only("List", fault)); was == backend.Gone {
						n.goes(t, old)
					}
					old.until(t, was)
					n.library.with(func() { n.down = false })
					w := n.successor(t, old, func(c *settings) { c.Before = backend.State{Condition: was} })
					time.Sleep(time.Minute)
					require.Len(t, w.states, 1, "once")
					s := <-w.states
					assert.Equal(t, backend.Slow, s.Condition)
					assert.Contains(t, s.Err.Error(), "List", "it is the reason of now")
				}, "a")
			})
		}
	}
}

// A call is under way during the first round after the hang.
func TestAHangEndsWhenTheBackendComesBack(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, nil)
		n.when(hang)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		assert.Error(t, w.bind(ctx, "a"))
		require.Equal(t, backend.Gone, w.State().Condition)
		n.when(only("Bind", taking(5*time.Second)))
		for w.State().Condition == backend.Gone {
			time.Sleep(time.Millisecond)
		}
		assert.NoError(t, w.bind(t.Context(), "a"), "the call goes on to its end")
		assert.NotEqual(t, backend.Gone, w.State().Condition)
	}, "a")
}

// A list with a filter took twice the budget if it lacked an item, because then the whole list is asked for as well.
func TestAListThatLacksAnItemKeepsItsBudget(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, func(c *settings) { // no list but the client's
			c.Interval, c.Spec.Lists[0].Every = time.Hour, time.Hour
		})
		n.library.with(func() { delete(n.library.books, "a") })
		n.when(only("List", taking(backend.DefaultBudget*3/4)))
		began := time.Now()
		got, err := w.list(t, `book_id: "a"`)
		require.NoError(t, err)
		assert.Equal(t, `books {id: "b"}`, got, "it is the answer of the backend, which applies no filter")
		assert.Equal(t, backend.DefaultBudget, time.Since(began))
		w.lists(t, `books {id: "b"}`, "the client knows that a is gone")
		assert.Equal(t, backend.Up, w.State().Condition, "each answer took less than the budget")
	}, "a", "b")
}

// A reload follows a runtime to another place. What becomes of the calls on the link to the old place says nothing of the runtime,
// and disturbs no call on the new link.
func TestAReplacedLinkThatFailsMarksNothingGone(t *testing.T) {
	for name, fault := range map[string]func(context.Context, string) error{
		"is lost": func(ctx context.Context, _ string) error {
			_ = taking(time.Second)(ctx, "")
			return unreachable{}
		},
		"hangs": hang,
	} {
		t.Run(name, func(t *testing.T) {
			inNoTime(t, func(t *testing.T, n *near) {
				there := &near{library: n.library}
				w := n.watch(t, nil)
				w.until(t, backend.Up)
				n.library.with(func() { n.fault, n.library.books["b"] = fault, "" })
				began, ended := time.Now(), make(chan error)
				go func() { ended <- w.bind(t.Context(), "a") }()
				read := make(chan error, 2)
				go func() {
					_, err := w.get(t, "b")
					read <- err
				}()
				go func() {
					_, err := w.list(t, "")
					read <- err
				}()
				time.Sleep(time.Millisecond)
				before := w.Generation()
				there.reload(t, w, nil)
				assert.Greater(t, w.Generation(), before)
				n.when(only("Bind", taking(time.Minute)))
				moved := make(chan error)
				go func() { moved <- w.bind(t.Context(), "a") }()
				assert.Equal(t, codes.Unavailable, status.Code(<-ended))
				assert.Less(t, time.Since(began), backend.DefaultSilence+5*time.Second)
				assert.NoError(t, <-moved)
				assert.NoError(t, errors.Join(<-read, <-read), "calls that change nothing are repeated, or the cache answers them")
				assert.Empty(t, w.states, "its condition has not changed")
			}, "a")
		})
	}
}

// The answer to a call on a replaced link says nothing of the runtime to which the next one leads.
func TestAnAnswerOnAReplacedLinkEndsNoOutage(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		there := &near{library: n.library}
		w := n.watch(t, func(c *settings) { c.Budget, c.Silence = time.Minute, time.Minute })
		held, release := n.holding("List")
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			_, _ = w.list(t, "")
		}()
		<-held
		there.reload(t, w, nil)
		there.goes(t, w)
		w.until(t, backend.Gone)
		close(release)
		<-answered
		time.Sleep(time.Minute)
		assert.Equal(t, backend.Gone, w.State().Condition)
		n.library.with(func() { there.down = false })
		w.until(t, backend.Up)
	}, "a")
}

// A reload repairs an outage: the backend is asked at its new place at once, whatever the attempt to find it at the old one does.
func TestABackendThatIsGoneIsFoundAtItsNewPlaceAtOnce(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		there := &near{library: n.library}
		w := n.watch(t, nil)
		n.library.with(func() { n.fault = hang })
		w.until(t, backend.Gone)
		time.Sleep(time.Minute)
		began := time.Now()
		there.reload(t, w, nil)
		w.until(t, backend.Up)
		assert.LessOrEqual(t, time.Since(began), 100*time.Millisecond)
	}, "a")
}

// It was asked for its list 20 times a second, because each error began a round.
func TestABackendThatAnswersItsListWithErrorsIsAskedOnceASecond(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		n.watch(t, nil)
		n.when(only("List", func(context.Context, string) error { return status.Error(codes.Internal, "no space left on device") }))
		_ = n.library.called("List") // those before
		time.Sleep(time.Minute)
		lists := n.library.called("List")
		assert.LessOrEqual(t, lists, 62)
		assert.GreaterOrEqual(t, lists, 50, "clients wait for it to come back")
	}, "a")
}
