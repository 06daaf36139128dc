package backend_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/backend"
)

// The backend makes an answer before a change, which arrives after the change.
func TestALateAnswerUndoesNothing(t *testing.T) {
	for _, request := range []string{`book_id: "a"`, `colour {}`, ``} {
		t.Run("of "+request, func(t *testing.T) {
			inNoTime(t, func(t *testing.T, n *near) {
				w := n.watch(t, nil)
				held, release := n.holding("List")
				late := make(chan string)
				go func() {
					got, _ := w.list(t, request)
					late <- got
				}()
				<-held
				n.library.with(func() { n.library.books["a"] = `title: "new"` })
				require.NoError(t, w.bind(t.Context(), "a"))
				time.Sleep(1500 * time.Millisecond) // Run has asked for the list
				close(release)
				require.Equal(t, `books {id: "a"}`, <-late)
				n.goes(t, w)
				w.lists(t, `books {id: "a" title: "new"}`)
			}, "a")
		})
	}
}

// kubelet connects again within 3 s, however long its runtime was gone.
func TestABackendIsFoundBackAsSoonAsByKubelet(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, nil)
		n.goes(t, w)
		time.Sleep(time.Hour) // the pauses between attempts have reached their full length
		n.library.with(func() { n.down = false })
		time.Sleep(3 * time.Second)
		assert.Equal(t, backend.Up, w.State().Condition)
	}, "a")
}
