package backend_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// library is a backend with books that a test can change and hang.
type library struct {
	mu    sync.Mutex
	books map[string]string // :: id → the book, as text without the id
	fault func(ctx context.Context, method string) error
	calls []string
}

// with calls f, which may read and change the library, with its lock held.
func (l *library) with(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

// called returns how often a method was called since the previous call of called.
func (l *library) called(method string) (n int) {
	l.with(func() {
		l.calls = slices.DeleteFunc(l.calls, func(m string) bool {
			if m == method {
				n++
			}
			return m == method
		})
	})
	return n
}

// answer answers a call of a method, by its short name.
func (l *library) answer(ctx context.Context, method string, request *codec.Frame) (*codec.Frame, error) {
	var fault func(context.Context, string) error
	l.with(func() {
		l.calls = append(l.calls, method)
		fault = l.fault
	})
	if fault != nil {
		if err := fault(ctx, method); err != nil {
			return nil, err
		}
	}
	switch method {
	case "Get":
		if request.Len() == 0 { // this is Alive
			return &codec.Frame{}, nil
		}
		id := strings.Trim(strings.TrimPrefix(muxtest.Text("GetRequest", request), "book_id: "), `"`)
		book, ok := "", false
		l.with(func() { book, ok = l.books[id] })
		if !ok {
			return nil, status.Errorf(codes.NotFound, "no book %s", id)
		}
		return muxtest.Bytes("Book", fmt.Sprintf("id: %q %s quotes {title: 'only in a status'}", id, book)), nil
	case "Put":
		_, id, _ := strings.Cut(muxtest.Text("PutRequest", request), "shelf: ")
		id = strings.Trim(id, `"`)
		l.with(func() { l.books[id] = "" })
		return muxtest.Bytes("Book", fmt.Sprintf("id: %q", id)), nil
	case "Bind": // a change that no list shows
		return &codec.Frame{}, nil
	case "List": // a library that applies no filter, as containerd does for images
		return muxtest.Bytes("ListResponse", l.list()), nil
	}
	return nil, status.Errorf(codes.Unimplemented, "unknown method %s", method)
}

func (l *library) list() string {
	var text []string
	l.with(func() {
		for id, book := range l.books {
			text = append(text, fmt.Sprintf("books {id: %q %s}", id, book))
		}
	})
	slices.Sort(text)
	return strings.Join(text, " ")
}

// settings are those of a link, and the Backend that it is for: nil means a new one.
type settings struct {
	backend.Config
	Backend *backend.Backend
}

// begin returns the Backend with its first link.
func (c settings) begin(t testing.TB) *backend.Backend {
	t.Helper()
	if c.Backend == nil {
		c.Backend = backend.Open(c.Name, backend.File{})
	}
	require.NoError(t, c.Backend.Use(c.Config))
	return c.Backend
}

// watched is a backend.Backend that runs, and its states.
type watched struct {
	*backend.Backend
	states chan backend.State
	stop   func()
}

// until waits for a state.
func (w *watched) until(t *testing.T, want backend.Condition) backend.State {
	t.Helper()
	for timeout := time.After(20 * time.Second); ; {
		select {
		case s := <-w.states:
			if s.Condition == want {
				return s
			}
		case <-timeout:
			t.Fatalf("it did not become %s", want)
		}
	}
}

func (w *watched) list(t *testing.T, request string, opts ...grpc.CallOption) (string, error) {
	t.Helper()
	reply := &codec.Frame{}
	err := w.Invoke(t.Context(), muxtest.Method("List"), muxtest.Frame(t, "ListRequest", request), reply, opts...)
	return muxtest.Text("ListResponse", reply), err
}

// lists checks which books a list of all has.
func (w *watched) lists(t *testing.T, want string, why ...any) {
	t.Helper()
	got, err := w.list(t, "")
	require.NoError(t, err, why...)
	assert.Equal(t, want, got, why...)
}

func (w *watched) get(t *testing.T, id string) (string, error) {
	t.Helper()
	reply := &codec.Frame{}
	err := w.Invoke(t.Context(), muxtest.Method("Get"), muxtest.Frame(t, "GetRequest", fmt.Sprintf("book_id: %q", id)), reply)
	return muxtest.Text("Book", reply), err
}

func hang(ctx context.Context, _ string) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestADiskThatHangsKeepsNoBackendGone(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		moves := make(chan struct{})
		file := filepath.Join(t.TempDir(), "known")
		w := n.watch(t, func(c *settings) {
			c.Backend = backend.Open("beta.io", backend.File{Path: file})
			c.Backend.HoldUpWrites(moves)
		})
		n.goes(t, w)
		n.library.with(func() { n.library.books["b"], n.down = "", false })
		w.until(t, backend.Up)
		assert.NoFileExists(t, file)
		close(moves)
		time.Sleep(5 * time.Second)
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		assert.Contains(t, string(data), "\x01b", "what was found meanwhile is written")
	}, "a")
}

func TestTheItemsOfABackendThatIsGoneStayInItsLists(t *testing.T) {
	for name, gone := range map[string]func(n *near){
		"stopped": func(n *near) { n.library.with(func() { n.down = true }) },
		"hung":    func(n *near) { n.when(hang) },
		"starting": func(n *near) { // containerd 1.6
			n.when(func(context.Context, string) error {
				return status.Error(codes.Unknown, "server is not initialized yet")
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			inNoTime(t, func(t *testing.T, n *near) {
				n.library.books["a2"] = `colour: BLUE labels {key: "x" value: "1"} labels {key: "y" value: "2"}`
				w := n.watch(t, nil)
				gone(n)
				w.until(t, backend.Gone)

				for request, want := range map[string]string{
					``:                      `a1 a2 b1`,
					`book_id: "a1"`:         `a1`,
					`colour {colour: BLUE}`: `a2`,
					`book_id: "c"`:          ``,
				} {
					var header metadata.MD
					got, err := w.list(t, request, grpc.Header(&header))
					require.NoError(t, err, request)
					assert.Equal(t, []string{"beta.io"}, header[backend.HeaderKey], "it says that it is from the cache")
					var ids []string
					for _, id := range []string{"a1", "a2", "b1"} {
						if strings.Contains(got, fmt.Sprintf("id: %q", id)) {
							ids = append(ids, id)
						}
					}
					assert.Equal(t, want, strings.Join(ids, " "), request)
				}
				streamed, err := w.Open(t.Context(), &grpc.StreamDesc{ServerStreams: true}, muxtest.Method("Stream"), &codec.Frame{})
				require.NoError(t, err)
				reply, err := streamed.Recv()
				require.NoError(t, err)
				assert.Equal(t, 3, strings.Count(muxtest.Text("ListResponse", reply), "books {"))
				_, err = streamed.Recv()
				assert.ErrorIs(t, err, io.EOF)

				got, err := w.get(t, "a2")
				require.NoError(t, err)
				assert.Contains(t, got, "only in a status", "Run has asked for the status; no client has")
				assert.Contains(t, got, `labels["x"]: "1"`)
				_, err = w.get(t, "c1")
				assert.Equal(t, codes.Unavailable, status.Code(err), "never NotFound while the backend cannot be asked")
			}, "a1", "a2", "b1")
		})
	}
}

func TestAllElseFailsAtOnceWhileABackendIsDown(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, nil)
		n.when(hang)
		w.until(t, backend.Gone)
		err := w.Invoke(t.Context(), muxtest.Method("Put"), &codec.Frame{}, &codec.Frame{})
		assert.Equal(t, codes.Unavailable, status.Code(err))
		assert.Regexp(t, `criproxy: backend beta.io is gone since \d\d:\d\d:\d\d: accepts connections, and has answered nothing for 10s`, err.Error())
		_, err = w.Open(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, muxtest.Method("Chat"), nil)
		assert.Equal(t, codes.Unavailable, status.Code(err))
		assert.Zero(t, n.library.called("Put"), "the backend did not get the call")
	}, "a1")
}

func TestCallsUnderWayEndWhenTheirBackendGoesDown(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, nil)
		n.when(hang)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		began, errs := time.Now(), make(chan error, 2)
		go func() { errs <- w.bind(ctx, "a1") }()
		go func() {
			s, err := w.Open(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, muxtest.Method("Chat"), nil)
			if err == nil {
				_, err = s.Recv()
			}
			errs <- err
		}()
		for range 2 {
			err := <-errs
			assert.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
			assert.Contains(t, err.Error(), "backend beta.io is gone since")
		}
		assert.Less(t, time.Since(began), backend.DefaultSilence+5*time.Second)
		assert.Equal(t, backend.Gone, w.State().Condition)
	}, "a1")
}

func TestATrueTimeoutOfABackendThatIsUpPassesAsItIs(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, nil)
		w.until(t, backend.Up)
		for _, want := range []error{
			status.Error(codes.DeadlineExceeded, "command timed out"),
			status.Error(codes.Unavailable, "the registry is unavailable"),
			status.Error(codes.Internal, "oops"),
		} {
			n.when(only("Bind", func(context.Context, string) error { return want }))
			assert.EqualError(t, w.bind(t.Context(), "a1"), want.Error())
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		n.when(only("Bind", hang))
		assert.Equal(t, codes.DeadlineExceeded, status.Code(w.bind(ctx, "a1")), "the client's own deadline")
		assert.Empty(t, w.states, "it stays up")
	}, "a1")
}

func TestABackendComesBackWithACompleteList(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, nil)
		n.goes(t, w)
		down := w.until(t, backend.Gone)
		assert.ErrorContains(t, down.Err, "connection refused")
		assert.True(t, down.Seen)
		n.library.with(func() {
			delete(n.library.books, "a1")
			n.library.books["a3"] = ""
		})
		w.lists(t, `books {id: "a1"} books {id: "a2"}`)
		n.library.with(func() { n.down = false })
		w.until(t, backend.Up)
		w.lists(t, `books {id: "a2"} books {id: "a3"}`)
		got, err := w.get(t, "a3")
		require.NoError(t, err)
		assert.Contains(t, got, "a3")
		assert.Empty(t, w.states, "Watch is called once for each change")
	}, "a1", "a2")
}

func TestRunAsksForNoListThatAClientAsksFor(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, func(c *settings) { c.Interval, c.Alive = 20*time.Millisecond, "" })
		_, err := w.list(t, "")
		require.NoError(t, err)
		time.Sleep(10 * time.Millisecond) // requests of Run at the same moment have been answered
		n.library.called("List")
		for range 20 { // for 400 ms; the profile's every is 1s
			_, err := w.list(t, "")
			require.NoError(t, err)
			time.Sleep(20 * time.Millisecond)
		}
		assert.Equal(t, 20, n.library.called("List"), "only the client's")
		assert.Equal(t, 1, n.library.called("Get"), "the status once, when it was new")
	}, "a1")
}

func TestAChangeIsAskedForAtOnce(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, func(c *settings) {
			c.Interval = time.Hour
			for i := range c.Spec.Lists {
				c.Spec.Lists[i].Every = time.Hour
			}
		})
		n.library.called("Get")
		require.NoError(t, w.Invoke(t.Context(), muxtest.Method("Put"), muxtest.Frame(t, "PutRequest", `shelf: "new"`), &codec.Frame{}))
		time.Sleep(time.Second)
		assert.Equal(t, 1, n.library.called("Get"), "the status of the new book")
		n.goes(t, w)
		w.lists(t, `books {id: "a1"} books {id: "new"}`)
		got, err := w.get(t, "new")
		require.NoError(t, err)
		assert.Contains(t, got, "only in a status")
	}, "a1")
}

func TestTheCacheSurvivesARestart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "beta.io.known")
	withFile := func(c *settings) { c.Backend = backend.Open("beta.io", backend.File{Path: file}) }
	var saved []byte // by a process that was killed
	inNoTime(t, func(t *testing.T, n *near) {
		n.watch(t, withFile)
		var err error
		saved, err = os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, 2, strings.Count(string(saved), "only in a status"))
		info, err := os.Stat(file)
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o600), info.Mode())
	}, "a1", "a2")
	// next is the process that finds a file, while the backend is gone.
	next := func(name string, content []byte, test func(t *testing.T, n *near, w *watched)) {
		t.Run(name, func(t *testing.T) {
			inNoTime(t, func(t *testing.T, n *near) {
				require.NoError(t, os.WriteFile(file, content, 0o600))
				n.down = true
				w := &watched{}
				w.Backend = n.config(t, withFile).begin(t)
				test(t, n, w)
			}, "a1")
		})
	}
	next("whole", saved, func(t *testing.T, _ *near, w *watched) {
		require.NoError(t, w.Err())
		w.lists(t, `books {id: "a1"} books {id: "a2"}`)
		got, err := w.get(t, "a1")
		require.NoError(t, err)
		assert.Contains(t, got, "only in a status")
	})
	other := []byte(strings.ReplaceAll(string(saved), bootID(t), strings.Repeat("0", len(bootID(t)))))
	require.NotEqual(t, saved, other)
	next("of another boot", resum(other), func(t *testing.T, _ *near, w *watched) {
		require.NoError(t, w.Err())
		got, err := w.list(t, "")
		require.NoError(t, err)
		assert.Empty(t, got, "everything that ran before the boot is dead")
	})
	for name, content := range map[string][]byte{
		"empty":     {},
		"cut off":   saved[:len(saved)-1],
		"bit rot":   append(append([]byte{}, saved[:100]...), append([]byte{saved[100] ^ 1}, saved[101:]...)...),
		"no file":   []byte("something else entirely, which is long enough to hold a checksum"),
		"no reply":  resum([]byte(strings.Replace(string(saved), "\x0a\x04\x0a\x02a1", "\x0a\x7f\x0a\x02a1", 1))),
		"of others": resum([]byte(strings.ReplaceAll(string(saved), "beta.io", "beta.ix"))),
	} {
		next(name, content, func(t *testing.T, n *near, w *watched) {
			assert.ErrorContains(t, w.Err(), file)
			w.run(t)
			_, err := w.list(t, "")
			assert.Equal(t, codes.Unavailable, status.Code(err), "it may have pods, which kubelet would kill")
			assert.Contains(t, err.Error(), "may have items that the cache lacks")
			kept, err := os.ReadFile(file)
			require.NoError(t, err)
			assert.Equal(t, content, kept, "the file stays as it is")
			n.library.with(func() { n.down = false })
			time.Sleep(5 * time.Second)
			_, err = w.list(t, "")
			assert.NoError(t, err)
			assert.NoError(t, backend.Open("beta.io", backend.File{Path: file}).Err(), "it is replaced once the backend is seen")
		})
	}
}

func TestABackendThatWasNeverSeen(t *testing.T) {
	required := func(c *settings) { c.Required = true }
	for name, test := range map[string]struct {
		change func(*settings)
		then   func(t *testing.T, n *near, w *watched)
	}{
		"is left out": {nil, func(t *testing.T, _ *near, w *watched) {
			got, err := w.list(t, "")
			require.NoError(t, err)
			assert.Empty(t, got)
		}},
		"makes lists fail if it is required": {required, func(t *testing.T, _ *near, w *watched) {
			_, err := w.list(t, "")
			assert.Equal(t, codes.Unavailable, status.Code(err))
			assert.Contains(t, err.Error(), "is required, has not been seen since this node was booted, and did not come within 10s")
		}},
		"makes lists wait until it says that it must be mended": {required, func(t *testing.T, n *near, w *watched) {
			n.when(func(context.Context, string) error { return status.Error(codes.FailedPrecondition, "came back") })
			n.comes(5 * time.Second)
			_, err := w.list(t, "")
			assert.Equal(t, codes.Unavailable, status.Code(err))
			assert.ErrorContains(t, err, "with FailedPrecondition: came back")
		}},
		"makes lists wait if it is required": {required, func(t *testing.T, n *near, w *watched) {
			n.comes(5 * time.Second)
			w.lists(t, `books {id: "a1"}`)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inNoTime(t, func(t *testing.T, n *near) {
				n.down = true
				w := n.watch(t, test.change)
				assert.False(t, w.until(t, backend.Gone).Seen)
				test.then(t, n, w)
			}, "a1")
		})
	}
}

// The file also has a change that a client's call read before Run did.
func TestAChangeThatACallReadFirstIsInTheFile(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		file := filepath.Join(t.TempDir(), "beta.io.known")
		n.library.books["a2"] = `title: "that goes"`
		w := n.watch(t, func(c *settings) { c.Backend = backend.Open("beta.io", backend.File{Path: file}) })
		says := func(title string) bool {
			saved, err := os.ReadFile(file)
			return err == nil && strings.Contains(string(saved), title)
		}
		require.True(t, says("that goes"))
		n.library.with(func() { delete(n.library.books, "a2") })
		_, err := w.list(t, "")
		require.NoError(t, err)
		_, err = w.get(t, "a1")
		require.NoError(t, err)
		time.Sleep(5 * time.Second)
		require.False(t, says("that goes"))

		// Without news the file is not written again, not even at the end.
		require.NoError(t, os.WriteFile(file, []byte("as it was"), 0o600))
		w.stop()
		assert.True(t, says("as it was"))
	}, "a1", "a2")
}

func TestThePoliciesFailAndSkip(t *testing.T) {
	for policy, check := range map[backend.Policy]func(got string, err error){
		backend.Skip: func(got string, err error) {
			assert.NoError(t, err)
			assert.Empty(t, got)
		},
		backend.Fail: func(_ string, err error) {
			assert.Equal(t, codes.Unavailable, status.Code(err))
			assert.Contains(t, err.Error(), "beta.io")
		},
	} {
		inNoTime(t, func(t *testing.T, n *near) {
			w := n.watch(t, func(c *settings) { c.Policy = policy })
			w.lists(t, `books {id: "a1"}`)
			n.goes(t, w)
			w.until(t, backend.Gone)
			check(w.list(t, ""))
			_, err := w.get(t, "a1")
			assert.Equal(t, codes.Unavailable, status.Code(err))
			n.library.with(func() { n.down = false })
			w.until(t, backend.Up)
			_, err = w.get(t, "a1")
			assert.NoError(t, err)
		}, "a1")
	}
	err := backend.Open("", backend.File{}).Use(backend.Config{Policy: "maybe"})
	assert.EqualError(t, err, `invalid policy "maybe": want "last-known", "fail" or "skip"`)
}

// An error of one backend's whole list does not reach the client.
func TestAnErrorOfAWholeListIsAnsweredFromTheCache(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, nil)
		for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
			n.when(only("List", func(context.Context, string) error { return status.Error(code, "no") }))
			got, err := w.list(t, "")
			assert.NoError(t, err, code)
			assert.Equal(t, `books {id: "a1"}`, got, code)
			_, err = w.get(t, "a1")
			assert.NoError(t, err, "other calls pass as usual")
			assert.NotEqual(t, backend.Gone, w.State().Condition, code)
		}
	}, "a1")
}

func TestAnErrorAboutARequestPassesAsItIs(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, func(c *settings) { c.Interval = time.Hour })
		for _, code := range []codes.Code{codes.InvalidArgument, codes.NotFound, codes.OutOfRange} {
			n.when(func(context.Context, string) error { return status.Error(code, "no") })
			_, err := w.list(t, `book_id: "a"`)
			assert.Equal(t, code, status.Code(err))
		}
		assert.Equal(t, backend.Up, w.State().Condition)
	}, "a1")
}

func TestAClientInAHurryIsAnsweredFromTheCache(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		n.when(hang)
		reply := &codec.Frame{}
		require.NoError(t, w.Invoke(ctx, muxtest.Method("List"), &codec.Frame{}, reply))
		assert.Equal(t, `books {id: "a1"}`, muxtest.Text("ListResponse", reply))
		assert.NoError(t, ctx.Err(), "before its time is over")
	}, "a1")
}

func TestMemoryIsBounded(t *testing.T) {
	for most, listed := range map[int]int{15000: 100, 5000: 0} { // room for the list without statuses; not even for that
		inNoTime(t, func(t *testing.T, n *near) {
			for i := range 100 {
				n.library.books[fmt.Sprint("b", i)] = fmt.Sprintf("title: %q", strings.Repeat("x", 100))
			}
			w := n.watch(t, func(c *settings) { c.MaxBytes = most })
			n.goes(t, w)
			got, err := w.list(t, "")
			assert.Equal(t, listed, strings.Count(got, "books {"), "all or nothing")
			if listed > 0 {
				require.NoError(t, err)
				return
			}
			assert.Equal(t, codes.Unavailable, status.Code(err))
			assert.Contains(t, err.Error(), "more items than fit in the 5000 bytes of memory")
		})
	}
}

func bootID(t *testing.T) string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	require.NoError(t, err)
	return strings.TrimSpace(string(b))
}
