package director

import (
	"fmt"
	"slices"
	"strings"

	"github.com/criproxy/criproxy/rewrite"
)

// A Route says, for people, what the director does with the calls of one method. It is what the profile says for the backends
// that there are: with a single backend nothing is translated, and everything goes there.
type Route struct {
	Method  string       // "/runtime.v1.RuntimeService/StopContainer"
	Stream  bool         // the client or the server sends a stream
	Goes    string       // where a call goes: "to the owner of container_id"
	Request []Translated // fields of the request that the director translates
	Reply   []Translated // fields of the reply that the director translates
}

// A Translated is a field that the director translates between front and back.
type Translated struct {
	Path string // "containers[].image.image"
	Kind string // "image"
}

// Routes returns the route of each method that the profile describes, in the order of the schema.
func (d *Director) Routes() []Route {
	var routes []Route
	t := d.table.Load()
	for _, m := range t.ordered {
		routes = append(routes, Route{
			Method:  m.Name,
			Stream:  !m.Unary(),
			Goes:    t.goes(m),
			Request: t.translated(m.request),
			Reply:   t.translated(m.reply),
		})
	}
	return routes
}

// Assumptions lists what the director assumes where a profile leaves something open: which value of a joined reply counts,
// if the profile was written for another version of the API, and that replies that are joined are no pages of a list. Each
// entry quotes the rule that would change it.
func (d *Director) Assumptions() []string { return slices.Clone(d.table.Load().assumptions) }

// goes says where the calls of a method go, in the order in which route decides.
func (t *table) goes(m *method) string {
	var ways []string
	var owners []string
	for _, p := range m.request.Paths() {
		if n := t.classes[p.Class].naming; n != nil && n.decides {
			owners = append(owners, p.Path)
		}
	}
	if len(owners) > 0 {
		ways = append(ways, "to the owner of "+strings.Join(owners, ", "))
	}
	for _, c := range m.choosers {
		ways = append(ways, fmt.Sprintf("by %s %s", c.kind, c.where))
	}
	last := "to the primary"
	if m.isNew && t.newTo > 0 {
		last = "to " + t.backends[t.newTo].String()
		if m.unlessNew != nil {
			last += ", or with " + m.unlessNew.String() + " to the primary"
		}
	}
	if m.first != nil {
		last = "to one after another until the reply has " + m.first.String()
	}
	if m.all {
		last = "to all"
		if m.pages != nil {
			last = "page by page to all"
		}
		if m.mirror {
			last = "to the primary, mirrored to all others"
		}
		if m.skipMissing {
			last = "to all that have it"
		}
	}
	return strings.Join(append(ways, last), ", else ")
}

// translated describes the fields that a plan edits.
func (t *table) translated(p *rewrite.Plan) []Translated {
	var fields []Translated
	for _, path := range p.Paths() {
		fields = append(fields, Translated{path.Path, t.classes[path.Class].name})
	}
	return fields
}
