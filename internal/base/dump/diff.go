package dump

import (
	"strconv"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// A Change is one value in which two messages differ.
type Change struct {
	Path   string `json:"path"`             // "containers[3].image.image"
	Before string `json:"before,omitempty"` // as [Text] prints it; empty if there is none
	After  string `json:"after,omitempty"`
}

// Diff returns the values in which two messages of type md differ. It compares the items of two
// lists pair by pair if the lists have the same length; otherwise it matches equal items first.
func (t Text) Diff(md protoreflect.MessageDescriptor, before, after []byte) []Change {
	return diffNodes(nil, "", t.Tree(md, before), t.Tree(md, after))
}

// DiffNodes is Diff for trees.
func DiffNodes(before, after []*Node) []Change { return diffNodes(nil, "", before, after) }

func diffNodes(changes []Change, prefix string, before, after []*Node) []Change {
	seen := map[string]bool{}
	labels := make([]string, 0, len(before))
	for _, n := range append(before[:len(before):len(before)], after...) {
		if l := n.label(); !seen[l] {
			seen[l] = true
			labels = append(labels, l)
		}
	}
	olds, news := byLabel(before), byLabel(after)
	for _, l := range labels {
		a, b := olds[l], news[l]
		list := len(a) > 1 || len(b) > 1
		for _, n := range append(a[:len(a):len(a)], b...) {
			list = list || n.List && n.Field != nil
		}
		for _, p := range pairs(a, b) {
			at := prefix + l
			if list {
				at += "[" + strconv.Itoa(p.index) + "]"
			}
			changes = diffPair(changes, at, p.a, p.b)
		}
	}
	return changes
}

func byLabel(nodes []*Node) map[string][]*Node {
	m := make(map[string][]*Node, len(nodes))
	for _, n := range nodes {
		m[n.label()] = append(m[n.label()], n)
	}
	return m
}

func diffPair(changes []Change, at string, a, b *Node) []Change {
	switch {
	case a != nil && b != nil && a.IsMsg && b.IsMsg:
		return diffNodes(changes, at+".", a.Nodes, b.Nodes)
	case a != nil && b != nil && a.IsMsg == b.IsMsg && a.Text == b.Text && string(a.Value) == string(b.Value):
		return changes
	}
	c := Change{Path: at}
	if a != nil {
		c.Before = a.String()
	}
	if b != nil {
		c.After = b.String()
	}
	return append(changes, c)
}

type pair struct {
	a, b  *Node
	index int // in the list after or, for a removed item, in the list before
}

// maxAlign bounds the work of matching two lists.
const maxAlign = 1 << 20

// pairs matches the items of two lists.
func pairs(a, b []*Node) []pair {
	var all []pair
	// beside pairs the items of a from i to endI with those of b from j to endJ, in their order.
	beside := func(i, endI, j, endJ int) {
		for k := range max(endI-i, endJ-j) {
			var p pair
			if i+k < endI {
				p.a, p.index = a[i+k], i+k
			}
			if j+k < endJ {
				p.b, p.index = b[j+k], j+k
			}
			all = append(all, p)
		}
	}
	if len(a) == len(b) || len(a)*len(b) > maxAlign {
		beside(0, len(a), 0, len(b))
		return all
	}
	text := func(nodes []*Node) []string {
		s := make([]string, len(nodes))
		for i, n := range nodes {
			s[i] = n.String()
		}
		return s
	}
	x, y := text(a), text(b)
	// Longest common subsequence, from the back.
	lcs := make([][]int32, len(x)+1)
	for i := range lcs {
		lcs[i] = make([]int32, len(y)+1)
	}
	for i := len(x) - 1; i >= 0; i-- {
		for j := len(y) - 1; j >= 0; j-- {
			if x[i] == y[j] {
				lcs[i][j] = lcs[i+1][j+1] + 1
			} else {
				lcs[i][j] = max(lcs[i+1][j], lcs[i][j+1])
			}
		}
	}
	doneI, doneJ := 0, 0 // items before these are paired
	for i, j := 0, 0; i < len(x) && j < len(y); {
		switch {
		case x[i] == y[j]:
			beside(doneI, i, doneJ, j)
			beside(i, i+1, j, j+1)
			i, j = i+1, j+1
			doneI, doneJ = i, j
		case lcs[i+1][j] >= lcs[i][j+1]:
			i++
		default:
			j++
		}
	}
	beside(doneI, len(x), doneJ, len(y))
	return all
}

// String returns the change on one line.
func (c Change) String() string {
	switch {
	case c.Before == "":
		return c.Path + ": added " + c.After
	case c.After == "":
		return c.Path + ": removed " + c.Before
	}
	return c.Path + ": " + c.Before + " -> " + c.After
}
