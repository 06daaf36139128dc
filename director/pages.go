package director

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/profile"
	"github.com/criproxy/criproxy/rewrite"
)

// pages is a method that lists page by page. The director goes through the backends one after
// another, so that a page has the size that the client asked for and each item is on one page
// only. A front token is the name of the backend where the next page begins, a slash, and that
// backend's own token. So the director need not remember where a client is. pages is immutable.
type pages struct {
	token, size *rewrite.Path
	next, items *rewrite.Path
}

const tokenSeparator = "/"

// compilePages finds the four fields of a method that lists page by page. The director replaces next in each reply, so it must be
// a field that can be dropped and appended.
func compilePages(form profile.PageForm, desc *codec.Method) (*pages, error) {
	p := &pages{}
	for _, f := range []struct {
		key, text string
		md        protoreflect.MessageDescriptor
		to        **rewrite.Path
	}{
		{"token", form.Token, desc.Input, &p.token},
		{"size", form.Size, desc.Input, &p.size},
		{"next", form.Next, desc.Output, &p.next},
		{"items", form.Items, desc.Output, &p.items},
	} {
		path, err := rewrite.ParsePath(f.md, f.text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.key, err)
		}
		*f.to = path
	}
	if !p.token.IsText() || !p.next.IsText() || !p.items.Leaf().IsList() || strings.Contains(form.Next, ".") || !desc.Unary() {
		return nil, errors.New("want a method with one reply, whose token and next are strings and whose items are a list; next must be a field of the reply itself")
	}
	return p, nil
}

// sharedPages returns an assumption if a method whose replies are joined seems to list page by page: then the token of one
// backend's page would go to all backends.
func sharedPages(desc *codec.Method) []string {
	text := func(md protoreflect.MessageDescriptor, is func(name string) bool) string {
		for _, fd := range rewrite.Singular(md) {
			if fd.Kind() == protoreflect.StringKind && is(string(fd.Name())) {
				return string(fd.Name())
			}
		}
		return ""
	}
	token := text(desc.Input, func(n string) bool {
		return strings.HasSuffix(n, "token") || strings.HasSuffix(n, "cursor") || n == "continue"
	})
	next := text(desc.Output, func(n string) bool {
		return strings.HasPrefix(n, "next") || strings.HasSuffix(n, "cursor") || n == "continue"
	})
	if token == "" || next == "" {
		return nil
	}
	name := profile.ShortName(desc.Name)
	return []string{fmt.Sprintf("%s: the list seems to come in pages, and the pages of all backends are joined: the %s of one backend, which the client sends back as %s, goes to all of them, so that items are missing or listed twice; "+
		"to list the backends one after another write methods: {%s: {all: pages, pages: {token: %s, size: FIELD, next: %s, items: FIELD}}}", name, next, token, name, token, next)}
}

// page asks the backends in turn, from the one that the token names, until the page is full or
// the last backend has no more. A request without a size gets all items of all backends on one page.
// The page ends early where a backend gave fewer items than it was asked for and has more: it may
// have a limit of its own.
func (t *table) page(ctx context.Context, m *method, call *codec.Call) error {
	p := m.pages
	body := call.Request.Bytes()
	size, _, err := p.size.LookupVarint(body)
	if err != nil {
		return err
	}
	front, _, err := p.token.Lookup(body)
	if err != nil {
		return err
	}
	b, token := t.begin(string(front))
	var parts []*codec.Frame
	for left := size; ; { // left is how many items the page still takes
		// The last value of a field counts: an appended one replaces the client's.
		ask := p.token.Append(append([]byte{}, body...), []byte(token))
		if size > 0 {
			ask = p.size.AppendVarint(ask, left)
		}
		call.Request = codec.NewFrame(ask)
		if err := t.invoke(ctx, m, b, call); err != nil {
			return err
		}
		reply, err := t.toPart(m, b, call.Reply)
		if err != nil {
			return err
		}
		next, _, err := p.next.Lookup(reply.Bytes())
		if err != nil {
			return err
		}
		token = string(next)
		n := uint64(0)
		if err := p.items.All(reply.Bytes(), func([]byte) error { n++; return nil }); err != nil {
			return err
		}
		part, err := rewrite.Without(nil, reply.Bytes(), func(n protoreflect.FieldNumber) bool { return n == p.next.Leaf().Number() })
		if err != nil {
			return err
		}
		parts = append(parts, codec.NewFrame(part))
		if token == "" {
			b++
		}
		full := size > 0 && n >= left
		left -= min(n, left)
		if b == len(t.backends) || full || size > 0 && token != "" {
			break
		}
	}
	merged := codec.Concat(parts)
	if b < len(t.backends) {
		merged = codec.Concat([]*codec.Frame{merged, codec.NewFrame(p.next.Append(nil, []byte(t.backends[b].Name+tokenSeparator+token)))})
	}
	call.Reply, err = t.bounded(merged, len(parts))
	return err
}

// begin returns the backend and its token with which a front token goes on. A token that the
// director did not make goes to the primary, which accepts or refuses it.
func (t *table) begin(front string) (int, string) {
	if name, token, ok := strings.Cut(front, tokenSeparator); ok {
		if b := t.place(name); b >= 0 {
			return b, token
		}
	}
	return 0, front
}
