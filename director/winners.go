package director

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/profile"
	"github.com/criproxy/criproxy/internal/suggest"
	"github.com/criproxy/criproxy/rewrite"
)

// winner is a field of a reply that is taken of one backend.
type winner struct {
	field protoreflect.FieldNumber
	who   string
}

// compileWinners finds the fields that joining would lose. Each must have a winner; a stream
// loses nothing. With a profile that was written for another version of the API, the primary
// wins a field without a winner, which is an assumption.
func (t *table) compileWinners(form profile.MethodForm, desc *codec.Method, fitted bool) ([]winner, error) {
	var all []winner
	var errs []error
	var names, lost []string
	for _, fd := range rewrite.Singular(desc.Output) {
		name := string(fd.Name())
		names = append(names, name)
		who, ok := form.Winners[name]
		if !ok && desc.Unary() {
			lost = append(lost, name)
			who = "primary"
		}
		if who != "" && who != "last" {
			all = append(all, winner{fd.Number(), who})
		}
	}
	for _, field := range sortedKeys(form.Winners) {
		if fd := desc.Output.Fields().ByName(protoreflect.Name(field)); fd == nil || fd.IsList() || fd.IsMap() {
			errs = append(errs, fmt.Errorf("%s has no field %q that is no list%s", desc.Output.FullName(), field, suggest.Nearest(field, names)))
		}
	}
	switch {
	case len(lost) > 0 && fitted && len(t.backends) > 1:
		t.assumptions = append(t.assumptions, assumed(form, desc, lost))
	case len(lost) > 0 && !fitted:
		errs = append(errs, fmt.Errorf("joined replies have one %s; say whose, as in {%s: primary}, first or last", strings.Join(lost, ", "), lost[0]))
	}
	return all, errors.Join(errs...)
}

// assumed says that the primary wins fields, and which rule says otherwise.
func assumed(form profile.MethodForm, desc *codec.Method, lost []string) string {
	name := profile.ShortName(desc.Name)
	rule := "all: concat"
	if form.Missing != "" {
		rule += ", missing: " + form.Missing
	}
	var winners []string
	for _, field := range sortedKeys(form.Winners) {
		winners = append(winners, field+": "+form.Winners[field])
	}
	for _, field := range lost {
		winners = append(winners, field+": first")
	}
	return fmt.Sprintf("%s: joined replies have one %s, and the profile does not say whose: criproxy takes the primary's; to choose another add rules: {methods: {%s: {%s, winners: {%s}}}}",
		name, strings.Join(lost, ", "), name, rule, strings.Join(winners, ", "))
}

// settle removes the fields that others win from the reply of a backend. taken are the fields
// that earlier backends had; settle adds to them. It frees a frame that it replaces.
func (m *method) settle(backend int, reply *codec.Frame, taken map[protoreflect.FieldNumber]bool) (*codec.Frame, error) {
	if len(m.winners) == 0 {
		return reply, nil
	}
	found := map[protoreflect.FieldNumber]bool{}
	rest, err := rewrite.Without(nil, reply.Bytes(), func(n protoreflect.FieldNumber) bool {
		for _, w := range m.winners {
			if w.field == n {
				found[n] = true
				return w.who == "primary" && backend > 0 || w.who == "first" && taken[n]
			}
		}
		return false
	})
	if err != nil {
		return nil, err
	}
	for n := range found {
		taken[n] = true
	}
	reply.Free()
	return codec.NewFrame(rest), nil
}
