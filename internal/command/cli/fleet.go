package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/show"
)

// nodeFlags are the flags that choose which criproxys a command asks: the one of -admin, or those of nodes.
type nodeFlags struct {
	admin    adminFlag
	names    string
	selector string
	kube     admin.Kube
	timeout  unitDuration
}

func (n *nodeFlags) flags(fs *flag.FlagSet) {
	n.admin.flags(fs)
	const usage = "ask the criproxy of `NODES`: names in Kubernetes or addresses as in -admin, separated by commas; or all"
	fs.StringVar(&n.names, "node", "", usage)
	fs.StringVar(&n.names, "nodes", "", "the same as -node: `NODES`, or all")
	fs.StringVar(&n.selector, "l", "", "ask the criproxys of all nodes that have the `LABELS`, such as pool=gpu")
	fs.StringVar(&n.kube.Context, "context", "", "the `NAME` of kubectl's context")
	fs.StringVar(&n.kube.Kubeconfig, "kubeconfig", "", "kubectl's configuration `FILE`")
	n.timeout = unitDuration(10 * time.Second)
	fs.Var(&n.timeout, "timeout", "how much `TIME` each node has to answer")
}

// check returns an error if the flags are invalid.
func (n *nodeFlags) check() error {
	if n.admin.given != "" && (n.names != "" || n.selector != "") {
		return &UsageError{errors.New("-admin and -nodes exclude each other")}
	}
	if n.timeout <= 0 {
		return &UsageError{errors.New("-timeout must be longer than nothing")}
	}
	for _, address := range append(strings.Split(n.names, ","), n.admin.given) {
		if err := admin.CheckAddress(address); err != nil {
			return &UsageError{err}
		}
	}
	return nil
}

// several reports whether nodes are chosen. The answer then says which node each part is from.
func (n *nodeFlags) several() bool { return n.names != "" || n.selector != "" }

// one returns the address to ask, of a command that asks one criproxy: that of -admin, or of the one node.
func (n *nodeFlags) one(ctx context.Context) (string, error) {
	if err := n.check(); err != nil {
		return "", err
	}
	if !n.several() {
		return n.admin.path(ctx)
	}
	nodes, err := n.nodes(ctx)
	switch {
	case err != nil:
		return "", err
	case len(nodes) > 1:
		return "", &UsageError{fmt.Errorf("these are %d nodes, and this command shows one; choose it with -node", len(nodes))}
	case nodes[0].Err != nil:
		return "", fmt.Errorf("%s: %w", nodes[0].Name, nodes[0].Err)
	}
	return nodes[0].Address, nil
}

// nodes returns the nodes to ask. There is at least one.
func (n *nodeFlags) nodes(ctx context.Context) ([]admin.Node, error) {
	var nodes []admin.Node
	var wanted []string // by their names in Kubernetes
	for _, name := range strings.Split(n.names, ",") {
		switch {
		case name == "":
		case strings.Contains(name, "/"):
			nodes = append(nodes, admin.Node{Name: admin.NodeName(name), Address: name})
		default:
			wanted = append(wanted, name)
		}
	}
	if n.selector != "" {
		labelled, err := n.kube.Labelled(ctx, n.selector)
		if err != nil {
			return nil, err
		}
		wanted = append(wanted, labelled...)
	}
	if len(wanted) > 0 {
		found, err := n.kube.Nodes(ctx, "")
		if err != nil {
			return nil, err
		}
		if slices.Contains(wanted, "all") {
			nodes, wanted = append(nodes, found...), nil
		}
		for _, name := range wanted {
			if i := slices.IndexFunc(found, func(one admin.Node) bool { return one.Name == name }); i >= 0 {
				nodes = append(nodes, found[i])
			} else {
				nodes = append(nodes, admin.Node{Name: name, Err: errors.New("it has no pod of criproxy")})
			}
		}
	}
	if len(nodes) == 0 {
		return nil, errors.New("no node has a pod of criproxy; check the namespace ($CRIPROXY_NAMESPACE), the labels of -l, and kubectl's context")
	}
	return nodes, nil
}

// choose adds the criproxys to ask to a query: the Path of one, or the Nodes that are chosen.
func (n *nodeFlags) choose(ctx context.Context, q *show.Query, errOut io.Writer) (err error) {
	if err := n.check(); err != nil {
		return err
	}
	if !n.several() {
		q.Path, err = n.admin.path(ctx)
		return err
	}
	q.Nodes, err = n.nodes(ctx)
	q.Timeout, q.Waiting = time.Duration(n.timeout), errOut
	return err
}

// podNodes returns the pods that arguments name, in a namespace, empty for that of kubectl's context. It chooses their
// nodes as the nodes to ask.
func (n *nodeFlags) podNodes(ctx context.Context, namespace string, args []string) ([]admin.KubePod, error) {
	if n.admin.given != "" || n.selector != "" || n.names != "" {
		return nil, &UsageError{errors.New("the pods choose the nodes: -admin, -nodes and -l cannot be given as well")}
	}
	var pods []admin.KubePod
	var names []string
	for _, what := range args {
		found, err := n.kube.Pods(ctx, namespace, what)
		if err != nil {
			return nil, err
		}
		for _, p := range found {
			pods = append(pods, p)
			if !slices.Contains(names, p.Node) {
				names = append(names, p.Node)
			}
		}
	}
	n.names = strings.Join(names, ",")
	return pods, nil
}
