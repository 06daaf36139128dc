package vm

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/internal/serial"
)

// A port is our end of the machine's serial port. Several commands may run at once.
type port struct {
	conn net.Conn

	mu      sync.Mutex
	last    int
	waiting map[int]chan serial.Reply // :: id of the command → where its reply goes; closed when there will be none
	boot    string                    // of the guest program that answers; empty until there is one
	booted  chan struct{}             // closed at the next change of boot
	ended   bool
}

// errNoReply means that the guest program ended before it answered, as it does in a reboot.
var errNoReply = errors.New("the machine did not answer")

func newPort(conn net.Conn) *port {
	p := &port{conn: conn, waiting: map[int]chan serial.Reply{}, booted: make(chan struct{})}
	go p.read()
	return p
}

// read delivers replies until the machine is gone.
func (p *port) read() {
	lines := bufio.NewReader(p.conn)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			p.mu.Lock()
			p.ended = true
			p.mu.Unlock()
			p.begin("")
			return
		}
		var reply serial.Reply
		switch {
		case json.Unmarshal(line, &reply) != nil: // cut off, or empty
		case reply.Boot != "":
			p.begin(reply.Boot)
		default:
			p.mu.Lock()
			if c := p.waiting[reply.ID]; c != nil {
				c <- reply // c has room for one
				delete(p.waiting, reply.ID)
			}
			p.mu.Unlock()
		}
	}
}

// begin notes that another guest program answers from now on, or none. It will not answer earlier commands.
func (p *port) begin(boot string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.boot = boot
	close(p.booted)
	p.booted = make(chan struct{})
	for id, c := range p.waiting {
		close(c)
		delete(p.waiting, id)
	}
}

// waitBoot waits until a guest program answers in a boot other than the given one, for a minute if ctx has no
// deadline.
func (p *port) waitBoot(ctx context.Context, not string) (string, error) {
	ctx, cancel := host.Bounded(ctx)
	defer cancel()
	for {
		p.mu.Lock()
		boot, changed, ended := p.boot, p.booted, p.ended
		p.mu.Unlock()
		if boot != "" && boot != not {
			return boot, nil
		}
		if ended {
			return "", errors.New("testbed: the virtual machine has ended while it was booted")
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return "", fmt.Errorf("testbed: waiting for the virtual machine to boot: %w", context.Cause(ctx))
		}
	}
}

// run runs a command in the machine, for a minute if ctx has no deadline.
func (p *port) run(ctx context.Context, stdin []byte, args ...string) (serial.Reply, error) {
	ctx, cancel := host.Bounded(ctx)
	defer cancel()
	answer := make(chan serial.Reply, 1)
	p.mu.Lock()
	p.last++
	command := serial.Command{ID: p.last, Args: args, Stdin: stdin}
	line, err := json.Marshal(command)
	if err == nil && p.boot == "" {
		err = errNoReply
	}
	if err == nil {
		p.waiting[command.ID] = answer
		_, err = p.conn.Write(append(line, '\n'))
	}
	p.mu.Unlock()
	if err != nil {
		return serial.Reply{}, fmt.Errorf("testbed: running %q in the virtual machine: %w", args, err)
	}
	select {
	case reply, ok := <-answer:
		if !ok {
			return reply, fmt.Errorf("testbed: running %q in the virtual machine: %w", args, errNoReply)
		}
		return reply, nil
	case <-ctx.Done():
		return serial.Reply{}, fmt.Errorf("testbed: running %q in the virtual machine: %w", args, context.Cause(ctx))
	}
}
