package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// A Node is a node whose criproxy can be asked.
type Node struct {
	Name    string
	Address string // of its admin socket
	Err     error  // why it cannot be asked; nil if it can
}

// atOnce is how many nodes are asked at a time.
const atOnce = 32

// An Unanswered error names the nodes that did not answer. What the others answered has been shown.
type Unanswered struct{ Nodes []Node }

func (u *Unanswered) Error() string {
	var lines []string
	for _, n := range u.Nodes {
		lines = append(lines, fmt.Sprintf("%s: %v", n.Name, n.Err))
	}
	return strings.Join(lines, "\n")
}

// UnansweredBy returns the error about the nodes with an Err, nil if there is none.
func UnansweredBy(nodes []Node) error {
	silent := slices.DeleteFunc(slices.Clone(nodes), func(n Node) bool { return n.Err == nil })
	if len(silent) == 0 {
		return nil
	}
	return &Unanswered{silent}
}

// EachNode calls ask with each node, for some of them at the same time, and each with a context that ends after timeout.
// A node with an Err is not asked. It returns the nodes, with the errors of ask. If the answers take longer than a
// moment, it says on waiting how many there are; nil says nothing.
func EachNode(ctx context.Context, nodes []Node, timeout time.Duration, waiting io.Writer, ask func(ctx context.Context, i int) error) []Node {
	nodes = slices.Clone(nodes)
	var answered atomic.Int64
	var asking errgroup.Group
	asking.SetLimit(atOnce)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range nodes {
			if nodes[i].Err != nil {
				answered.Add(1)
				continue
			}
			asking.Go(func() error {
				defer answered.Add(1)
				within, cancel := context.WithTimeout(ctx, timeout)
				defer cancel()
				nodes[i].Err = ask(within, i)
				if errors.Is(nodes[i].Err, context.DeadlineExceeded) && within.Err() != nil {
					nodes[i].Err = fmt.Errorf("no answer within %s", timeout)
				}
				return nil
			})
		}
		_ = asking.Wait() // each node has its own error
	}()
	select {
	case <-done:
	case <-time.After(moment):
		if waiting != nil {
			fmt.Fprintf(waiting, "criproxy: %d of %d nodes have answered; waiting for the others\n", answered.Load(), len(nodes))
		}
		<-done
	}
	return nodes
}

// moment is how long a command waits without saying for what.
const moment = 900 * time.Millisecond
