package cli

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A note stands in the place of lost lines.
func TestLostLinesOfTheLogLeaveANote(t *testing.T) {
	t.Parallel()
	r, w := io.Pipe()
	l, err := NewLog(w)
	require.NoError(t, err)
	line := func(i int) string { return fmt.Sprintf("%d %s\n", i, strings.Repeat("x", i%9*20_000)) } // some longer than a pipe
	const lines = 400
	for i := range lines {
		_, err := io.WriteString(l.in, line(i))
		require.NoError(t, err)
	}
	read := bufio.NewReader(r)
	missing := 0
	for next := 0; next < lines; {
		got, err := read.ReadString('\n')
		require.NoError(t, err)
		var lost int
		if _, err := fmt.Sscanf(got, "criproxy: missing here: %d line", &lost); err == nil {
			next, missing = next+lost, missing+lost
			continue
		}
		require.True(t, got == line(next), "line %d is %.20q", next, got)
		next++
	}
	assert.Positive(t, missing)
	assert.Less(t, missing, lines)
	_, err = io.WriteString(l.in, "the last one\nwithout an end")
	require.NoError(t, err)
	ended := make(chan struct{})
	go func() { defer close(ended); l.Close(); w.Close() }()
	rest, err := io.ReadAll(read)
	require.NoError(t, err)
	assert.Equal(t, "the last one\nwithout an end", string(rest))
	<-ended
}

// klog quotes a text, unless it has several lines: an error of a runtime could send escape sequences to the terminal of
// whoever read the log. See issue 40.
func TestTheLogDoesNotControlATerminal(t *testing.T) {
	t.Parallel()
	r, w := io.Pipe()
	l, err := NewLog(w)
	require.NoError(t, err)
	_, err = io.WriteString(l.in, "err=<\n\tfirst\x1b[2J\r line\n\tsecond \xc2\x9b0m \x9b0m, größer\n >\n")
	require.NoError(t, err)
	go func() { l.Close(); w.Close() }()
	got, err := io.ReadAll(r)
	require.NoError(t, err)
	assert.Equal(t, "err=<\n\tfirst [2J  line\n\tsecond  0m \uFFFD0m, größer\n >\n", string(got))
}
