package vm

import (
	"bufio"
	"context"
	"encoding/json"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/testbed/internal/serial"
)

// A fake is the other end of a port.
type fake struct {
	testing.TB
	conn  net.Conn
	lines *bufio.Scanner
}

func newFake(t *testing.T) (*port, *fake) {
	here, there := net.Pipe()
	t.Cleanup(func() { here.Close(); there.Close() })
	return newPort(here), &fake{t, there, bufio.NewScanner(there)}
}

func (f *fake) say(text string) {
	_, err := f.conn.Write([]byte(text))
	require.NoError(f, err)
}

func (f *fake) reply(r serial.Reply) {
	line, err := json.Marshal(r)
	require.NoError(f, err)
	f.say(string(line) + "\n")
}

func (f *fake) command() (c serial.Command) {
	require.True(f, f.lines.Scan())
	require.NoError(f, json.Unmarshal(f.lines.Bytes(), &c))
	return c
}

func TestCommandsGetTheirOwnReplies(t *testing.T) {
	p, f := newFake(t)
	_, err := p.run(t.Context(), nil, "early")
	require.ErrorIs(t, err, errNoReply, "nobody is there yet")
	go f.reply(serial.Reply{Boot: "first"})
	boot, err := p.waitBoot(t.Context(), "")
	require.NoError(t, err)
	assert.Equal(t, "first", boot)

	outs := make(chan string, 2)
	for _, name := range []string{"one", "two"} {
		go func() {
			reply, err := p.run(t.Context(), []byte(name), name)
			assert.NoError(t, err)
			outs <- name + string(reply.Out)
		}()
	}
	a, b := f.command(), f.command()
	f.say(`{"id": 1, "out`) // as after a power cut
	f.say("\n\n")
	f.reply(serial.Reply{ID: b.ID, Out: append(b.Stdin, '!')})
	f.reply(serial.Reply{ID: a.ID, Out: append(a.Stdin, '!')})
	assert.ElementsMatch(t, []string{"oneone!", "twotwo!"}, []string{<-outs, <-outs})
}

func TestABootEndsTheCommandsBeforeIt(t *testing.T) {
	p, f := newFake(t)
	f.reply(serial.Reply{Boot: "first"})
	_, err := p.waitBoot(t.Context(), "")
	require.NoError(t, err)
	failed := make(chan error)
	go func() {
		_, err := p.run(t.Context(), nil, "systemctl", "reboot")
		failed <- err
	}()
	f.command()
	f.reply(serial.Reply{Boot: "second"})
	require.ErrorIs(t, <-failed, errNoReply)
	boot, err := p.waitBoot(t.Context(), "first")
	require.NoError(t, err)
	assert.Equal(t, "second", boot)

	f.conn.Close()
	_, err = p.waitBoot(t.Context(), "second")
	assert.ErrorContains(t, err, "has ended")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = p.run(ctx, nil, "late")
	assert.ErrorIs(t, err, errNoReply)
}
