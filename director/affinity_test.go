package director_test

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// A request without the first of several values to remember left the others out.
func TestEveryValueThatARequestHasIsRemembered(t *testing.T) {
	profile := muxtest.LibraryProfile(t, "      - backend: labels[\"backend\"]\n", `      - told: labels["a"]
      - told: labels["b"]
    tells: {'labels["a"]': book.id, 'labels["b"]': book.id}
`)
	var calls [2]atomic.Int32
	cc := muxtest.Mux(t, director.Config{Profile: profile, Backends: []director.Backend{{}, {Name: "beta.io"}}}, echo(&calls[0]), echo(&calls[1]))
	for _, key := range []string{"a", "b"} {
		_, err := call(t, cc, "Put", "PutRequest", `book {id: "beta.io__1"} labels {key: "`+key+`" value: "of `+key+`"}`)
		require.NoError(t, err)
		before := calls[1].Load()
		_, err = call(t, cc, "Put", "PutRequest", `labels {key: "`+key+`" value: "of `+key+`"}`)
		require.NoError(t, err)
		assert.Equal(t, before+1, calls[1].Load(), "the call with label %s goes to the backend of the book", key)
	}
}
