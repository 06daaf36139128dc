package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/show"
)

// nodeFlags are the flags that choose which criproxys a command asks: the one of -admin, or those of nodes.
type nodeFlags struct {
	admin    string
	names    string
	selector string
	kube     admin.Kube
	timeout  unitDuration
	assumed  bool // $CRIPROXY_NODES chose the nodes

	namespace string // of the pods that arguments name; empty for that of kubectl's context
}

// NodesVariable is the environment variable with the nodes to ask, unless flags choose some. kubectl criproxy asks all.
const NodesVariable = "CRIPROXY_NODES"

// flags adds all flags to fs.
func (n *nodeFlags) flags(fs *flag.FlagSet) {
	addAdminFlag(fs, &n.admin)
	n.choosing(fs)
}

// choosing adds the flags to fs, except -admin.
func (n *nodeFlags) choosing(fs *flag.FlagSet) {
	const usage = "ask the criproxy of `NODES`: names in Kubernetes or addresses as in -admin, separated by commas; or all"
	fs.StringVar(&n.names, "node", "", usage)
	fs.StringVar(&n.names, "nodes", "", "the same as -node: `NODES`, or all")
	fs.StringVar(&n.selector, "l", "", "also ask the criproxys of all nodes that have the `LABELS`, such as pool=gpu")
	fs.StringVar(&n.kube.Context, "context", "", "the `NAME` of kubectl's context")
	fs.StringVar(&n.kube.Kubeconfig, "kubeconfig", "", "kubectl's configuration `FILE`")
	if n.timeout == 0 {
		n.timeout = unitDuration(10 * time.Second)
	}
	fs.Var(&n.timeout, "timeout", fmt.Sprintf("how much `TIME` each node has to answer (default %s)", time.Duration(n.timeout)))
}

// ofPods adds the flag of commands whose arguments are pods.
func (n *nodeFlags) ofPods(fs *flag.FlagSet) {
	fs.StringVar(&n.namespace, "n", "", "find the nodes of each POD with kubectl, in this `NAMESPACE`; POD may also be TYPE/NAME, such as deployment/web, or a label, such as app=web")
}

// check returns an error if the flags are invalid.
func (n *nodeFlags) check() error {
	if n.admin == "" && !n.several() {
		n.names = os.Getenv(NodesVariable)
		n.assumed = n.names != ""
	}
	if n.admin != "" && n.several() {
		return &UsageError{errors.New("-admin and -nodes exclude each other")}
	}
	if n.timeout <= 0 {
		return &UsageError{errors.New("-timeout must be longer than nothing")}
	}
	if err := n.kube.Check(n.selector, n.namespace); err != nil {
		return &UsageError{err}
	}
	for _, address := range append(strings.Split(n.names, ","), n.admin) {
		if err := admin.CheckAddress(address); err != nil {
			return &UsageError{err}
		}
	}
	return nil
}

// several reports whether nodes are chosen. The answer then says which node each part is from.
func (n *nodeFlags) several() bool { return n.names != "" || n.selector != "" }

// instead reports whether a command that examines a node examines those that the flags choose, instead of this one, and adds
// them to a query. -admin is a flag of serve there, and may be the address of another node.
func (n *nodeFlags) instead(ctx context.Context, f *Flags, q *show.Query, errOut io.Writer) (bool, error) {
	if admin.IsRemote(f.typed.Admin) || n.several() {
		n.admin = f.typed.Admin
	} else if f.given["admin"] {
		return false, nil
	}
	if err := n.check(); err != nil {
		return false, err
	}
	if n.admin != "" {
		n.names, n.admin = n.admin, ""
	}
	if !n.several() {
		return false, nil
	}
	return true, n.choose(ctx, q, errOut)
}

// chosen returns the nodes to ask. If none are chosen, it is the one of -admin, without a name.
func (n *nodeFlags) chosen(ctx context.Context) ([]admin.Node, error) {
	if err := n.check(); err != nil {
		return nil, err
	}
	if n.several() {
		return n.nodes(ctx)
	}
	path, err := adminSocket(ctx, n.admin)
	return []admin.Node{{Address: n.kube.At(path)}}, err
}

// nodes returns the nodes to ask. There is at least one.
func (n *nodeFlags) nodes(ctx context.Context) ([]admin.Node, error) {
	var nodes []admin.Node
	var wanted []string // by their names in Kubernetes
	for _, name := range strings.Split(n.names, ",") {
		switch {
		case name == "":
		case strings.Contains(name, "/"):
			nodes = append(nodes, admin.Node{Name: admin.NodeName(name), Address: n.kube.At(name)})
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
		if slices.Contains(strings.Split(n.names, ","), "all") {
			nodes, wanted = append(nodes, found...), nil
		}
		for at, name := range wanted {
			if slices.Contains(wanted[:at], name) {
				continue // it is named, and has the labels
			}
			if i := slices.IndexFunc(found, func(one admin.Node) bool { return one.Name == name }); i >= 0 {
				nodes = append(nodes, found[i])
			} else {
				nodes = append(nodes, admin.Node{Name: name, Err: errors.New("it has no pod of criproxy")})
			}
		}
	}
	if len(nodes) == 0 {
		return nil, errors.New("no node has a pod of criproxy; check the namespace ($CRIPROXY_NAMESPACE) and kubectl's context")
	}
	return nodes, nil
}

// choose adds the criproxys to ask to a query: the Path of one, or the Nodes that are chosen.
func (n *nodeFlags) choose(ctx context.Context, q *show.Query, errOut io.Writer) (err error) {
	q.Timeout, q.Waiting = time.Duration(n.timeout), errOut
	nodes, err := n.chosen(ctx)
	if n.several() || err != nil {
		q.Nodes = nodes
		return err
	}
	q.Path = nodes[0].Address
	return nil
}

// pods finds out which pods arguments name, and chooses their nodes as the nodes to ask. It returns the pods as
// [calls.Filter.FollowPod] has them. It asks kubectl if there is a namespace, or if nothing else chooses nodes; without a
// namespace, pods that kubectl does not find are looked for on all nodes, unless errOut is nil.
func (n *nodeFlags) pods(ctx context.Context, args []string, errOut io.Writer) ([]string, error) {
	if err := n.check(); err != nil || len(args) == 0 || n.namespace == "" && !n.assumed {
		return args, err
	}
	if n.several() && !n.assumed || n.admin != "" {
		return nil, &UsageError{errors.New("with -n, the pods choose the nodes: -admin, -nodes and -l cannot be given as well")}
	}
	var pods, names []string
	for _, what := range args {
		found, err := n.kube.Pods(ctx, n.namespace, what)
		if err != nil && n.namespace == "" && ctx.Err() == nil && errOut != nil {
			fmt.Fprintf(errOut, "criproxy: looking for %s on all nodes: %v\n", what, err)
			return args, nil
		}
		if err != nil {
			return nil, err
		}
		for _, p := range found {
			pods = append(pods, p.Namespace+"/"+p.Name)
			if !slices.Contains(names, p.Node) {
				names = append(names, p.Node)
			}
		}
	}
	n.names, n.assumed = strings.Join(names, ","), false
	return pods, nil
}
