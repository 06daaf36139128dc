package admin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"
	"unicode"
)

// Kube reaches the nodes of a cluster through kubectl. The zero value uses kubectl's own configuration.
type Kube struct{ Context, Kubeconfig string }

// kubeVariable is the environment variable with the namespace of criproxy's pods.
const kubeVariable = "CRIPROXY_NAMESPACE"

func kubeNamespace() string { return cmp.Or(os.Getenv(kubeVariable), "criproxy") }

// podLabel selects the pods of criproxy's DaemonSet.
const podLabel = "app=criproxy"

// Check returns an error if a value that kubectl gets cannot be meant: one of k, or of more. They cannot be options in
// any case.
func (k Kube) Check(more ...string) error {
	for _, value := range append(more, k.Context, k.Kubeconfig) {
		if strings.ContainsFunc(value, unicode.IsControl) || strings.HasPrefix(value, "-") {
			return fmt.Errorf("invalid value %q for kubectl: it begins with a dash, or has control characters", value)
		}
	}
	return nil
}

// command returns the command line of kubectl. A value stands in the same argument as its option, so no value can be an
// option.
func (k Kube) command(args ...string) []string {
	argv := []string{"kubectl"}
	if k.Context != "" {
		argv = append(argv, "--context="+k.Context)
	}
	if k.Kubeconfig != "" {
		argv = append(argv, "--kubeconfig="+k.Kubeconfig)
	}
	return append(argv, args...)
}

// get asks the API server, and decodes its answer.
func (k Kube) get(ctx context.Context, answer any, args ...string) error {
	var out bytes.Buffer
	err := runProgram(ctx, k.command(append([]string{"get", "--output=json"}, args...)...), nil, &out)
	if err == nil {
		err = json.Unmarshal(out.Bytes(), answer)
	}
	if err != nil {
		return fmt.Errorf("asking the API server: %w", err)
	}
	return nil
}

// kubePods are the fields of a PodList that matter here.
type kubePods struct {
	Items []struct {
		Metadata struct{ Name, Namespace, DeletionTimestamp string }
		Spec     struct{ NodeName string }
		Status   struct {
			Phase             string
			ContainerStatuses []struct{ State struct{ Running *struct{} } }
		}
	}
}

// Nodes returns the nodes on which a pod of criproxy's DaemonSet is, by their names; only the one called node, unless
// that is empty.
func (k Kube) Nodes(ctx context.Context, node string) ([]Node, error) {
	args := []string{"pods", "--namespace=" + kubeNamespace(), "--selector=" + podLabel}
	if node != "" {
		args = append(args, "--field-selector=spec.nodeName="+node)
	}
	var pods kubePods
	if err := k.get(ctx, &pods, args...); err != nil {
		return nil, err
	}
	found := map[string]Node{}
	for _, p := range pods.Items {
		n := Node{Name: p.Spec.NodeName, Address: k.address(p.Metadata.Namespace, p.Metadata.Name)}
		// It need not be ready: that is for nodes that are not in trouble.
		running := p.Status.Phase == "Running" && p.Metadata.DeletionTimestamp == "" && len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].State.Running != nil
		if !running {
			n.Err = fmt.Errorf("its pod %s/%s does not run (%s)", p.Metadata.Namespace, p.Metadata.Name, cmp.Or(p.Status.Phase, "unknown"))
		}
		if other, ok := found[n.Name]; n.Name != "" && (!ok || other.Err != nil) { // one that goes may still be listed
			found[n.Name] = n
		}
	}
	return slices.SortedFunc(maps.Values(found), func(a, b Node) int { return cmp.Compare(a.Name, b.Name) }), nil
}

// address returns the address of the criproxy that a pod of it reaches, or, without a pod, of a node's.
func (k Kube) address(namespace, pod string) string {
	query := url.Values{}
	if k.Context != "" {
		query.Set("context", k.Context)
	}
	if k.Kubeconfig != "" {
		query.Set("kubeconfig", k.Kubeconfig)
	}
	u := url.URL{Scheme: "kube", Host: namespace, Path: pod, RawQuery: query.Encode()}
	return u.String()
}

// At returns an address as k reaches it: one of kube:// that names no context and no kubeconfig gets those of k.
func (k Kube) At(address string) string {
	r, err := parseRemote(address)
	if err != nil || r == nil || r.host != "" || r.kube != (Kube{}) {
		return address
	}
	return k.address(cmp.Or(r.namespace, r.node), r.pod)
}

// Labelled returns the names of the nodes that a label selector selects. There is at least one.
func (k Kube) Labelled(ctx context.Context, selector string) ([]string, error) {
	var nodes struct {
		Items []struct{ Metadata struct{ Name string } }
	}
	if err := k.get(ctx, &nodes, "nodes", "--selector="+selector); err != nil {
		return nil, err
	}
	var names []string
	for _, n := range nodes.Items {
		names = append(names, n.Metadata.Name)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("no node has the labels %s", selector)
	}
	return names, nil
}

// A KubePod is a pod as the API server knows it.
type KubePod struct{ Namespace, Name, Node string }

// Pods returns the pods that what names, in a namespace, empty for that of kubectl's context: POD, TYPE/NAME of
// something that selects pods, such as deployment/web, or a label selector such as app=web.
func (k Kube) Pods(ctx context.Context, namespace, what string) ([]KubePod, error) {
	var in []string
	if namespace != "" {
		in = []string{"--namespace=" + namespace}
	}
	kind, name, typed := strings.Cut(what, "/")
	if !typed {
		kind, name = "pod", what
	}
	selector := "--field-selector=metadata.name=" + name
	switch {
	case strings.Contains(what, "="):
		selector = "--selector=" + what
	case !kubeName.MatchString(kind) || !kubeName.MatchString(name):
		return nil, fmt.Errorf("invalid pod %q: want POD, TYPE/NAME such as deployment/web, or a label such as app=web", what)
	case !slices.Contains([]string{"pod", "pods", "po"}, kind):
		var owner struct {
			Spec struct {
				Selector struct{ MatchLabels map[string]string }
			}
		}
		if err := k.get(ctx, &owner, append(in, what)...); err != nil {
			return nil, err
		}
		var labels []string
		for _, key := range slices.Sorted(maps.Keys(owner.Spec.Selector.MatchLabels)) {
			labels = append(labels, key+"="+owner.Spec.Selector.MatchLabels[key])
		}
		if len(labels) == 0 {
			return nil, fmt.Errorf("%s selects no pods by labels", what)
		}
		selector = "--selector=" + strings.Join(labels, ",")
	}
	var pods kubePods
	if err := k.get(ctx, &pods, append(in, "pods", selector)...); err != nil {
		return nil, err
	}
	var all []KubePod
	for _, p := range pods.Items {
		if p.Spec.NodeName != "" {
			all = append(all, KubePod{p.Metadata.Namespace, p.Metadata.Name, p.Spec.NodeName})
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no pod %s is on a node", what)
	}
	return all, nil
}
