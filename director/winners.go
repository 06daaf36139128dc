package director

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/base/suggest"
	"github.com/criproxy/criproxy/internal/base/wire"
	"github.com/criproxy/criproxy/internal/profile"
	"github.com/criproxy/criproxy/rewrite"
)

// A winner says from which backend's reply a field is taken, or that its values are added up. It is
// immutable. A field whose last value wins needs none: that is what concatenation leaves.
//
// A list from the cache holds items and no other field. So it wins nothing: the primary's value is
// missing while the primary's part is cached, and first and last pass over a cached part. To a sum it
// adds the number of its items.
type winner struct {
	field protoreflect.FieldNumber
	who   string // primary, first or sum
	most  uint64 // largest value of a sum
}

// sum is the winner of a count: the counts of all backends, added up.
const sum = "sum"

// summable are the kinds of numbers that can be added up, with the largest value of each.
var summable = map[protoreflect.Kind]uint64{
	protoreflect.Int32Kind: math.MaxInt32, protoreflect.Uint32Kind: math.MaxUint32,
	protoreflect.Int64Kind: math.MaxInt64, protoreflect.Uint64Kind: math.MaxUint64,
}

// compileWinners finds the fields that several replies have and the joined reply can have only once.
// The profile must say whose value each gets, except in a stream, whose messages are not joined. In a
// profile that was written for another version of the API a field may lack a winner: then the primary
// wins, and that is an assumption.
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
		if who == sum {
			switch {
			case !desc.Unary():
				errs = append(errs, fmt.Errorf("%s: there is no sum over the messages of a stream; want primary, first or last", name))
			case summable[fd.Kind()] == 0:
				errs = append(errs, fmt.Errorf("%s: is %s, and sum is for whole numbers: int32, int64, uint32 and uint64", name, fd.Kind()))
			}
		}
		if who != "" && who != "last" {
			all = append(all, winner{fd.Number(), who, summable[fd.Kind()]})
		}
	}
	for _, field := range sortedKeys(form.Winners) {
		if fd := desc.Output.Fields().ByName(protoreflect.Name(field)); fd == nil || fd.IsList() || fd.IsMap() {
			errs = append(errs, fmt.Errorf("%s has no field %q that holds a single value%s", desc.Output.FullName(), field, suggest.Nearest(field, names)))
		}
	}
	switch {
	case len(lost) > 0 && fitted && len(t.backends) > 1:
		t.assumptions = append(t.assumptions, assumed(form, desc, lost))
	case len(lost) > 0 && !fitted:
		errs = append(errs, fmt.Errorf("each backend replies with a value of %s, and the joined reply holds only one: say whose, as in winners: {%s: primary}; first, last and, for counts, sum are also possible", strings.Join(lost, ", "), lost[0]))
	}
	return all, errors.Join(errs...)
}

// assumed says that the primary wins fields, and which rule would change that.
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
	return fmt.Sprintf("%s: each backend replies with a value of %s, the joined reply holds only one, and the profile does not say whose: criproxy takes the primary's; to choose another add rules: {methods: {%s: {%s, winners: {%s}}}}",
		name, strings.Join(lost, ", "), name, rule, strings.Join(winners, ", "))
}

// settled holds what the replies so far had of the fields with winners. It lasts for one call, and belongs to its goroutine.
type settled struct {
	taken map[protoreflect.FieldNumber]bool   // fields that a reply had
	sums  map[protoreflect.FieldNumber]uint64 // of the fields to add up
}

// settle removes from the reply of a backend the fields that another backend wins or that are added
// up, and notes in s which the reply had. It must get the replies in the order of the backends.
// cached says that the reply is a list from the cache. settle frees a frame that it replaces.
func (m *method) settle(backend int, reply *codec.Frame, cached bool, s *settled) (*codec.Frame, error) {
	if len(m.winners) == 0 {
		return reply, nil
	}
	if s.taken == nil {
		s.taken, s.sums = map[protoreflect.FieldNumber]bool{}, map[protoreflect.FieldNumber]uint64{}
	}
	found := map[protoreflect.FieldNumber]bool{}
	rest, err := rewrite.Without(nil, reply.Bytes(), func(n protoreflect.FieldNumber) bool {
		for _, w := range m.winners {
			if w.field == n {
				found[n] = true
				return w.who == sum || w.who == "primary" && backend > 0 || w.who == "first" && s.taken[n]
			}
		}
		return false
	})
	if err != nil {
		return nil, err
	}
	for n := range found {
		s.taken[n] = true
	}
	for _, w := range m.winners {
		switch {
		case w.who != sum:
		case found[w.field]:
			s.add(w, lastNumber(reply.Bytes(), w.field))
		case cached:
			s.add(w, fieldCount(reply.Bytes()))
		}
	}
	reply.Free()
	return codec.NewFrame(rest), nil
}

// fromCache reports whether the reply of a backend is a list from the cache.
func (m *method) fromCache(call *codec.Call) bool { return m.listed && cached(call) }

// addSums adds the sums that a list of one backend lacks when it comes from the cache.
func (m *method) addSums(backend int, call *codec.Call) error {
	var s settled
	reply, err := m.settle(backend, call.Reply, true, &s)
	if err != nil {
		return err
	}
	call.Reply = reply
	if sums := s.frame(m.winners); sums != nil {
		call.Reply = codec.Concat([]*codec.Frame{reply, sums})
	}
	return nil
}

// add adds n to a sum. A sum that would overflow stays at the largest value of the field: a count
// that is too small or negative would be worse.
func (s *settled) add(w winner, n uint64) {
	if n > w.most {
		n = 0 // n is negative, and does not count
	}
	if total := s.sums[w.field] + n; total < n || total > w.most {
		s.sums[w.field] = w.most
	} else {
		s.sums[w.field] = total
	}
}

// frame returns a reply with the sums, or nil if there are none.
func (s *settled) frame(winners []winner) *codec.Frame {
	var b []byte
	for _, w := range winners {
		if n, ok := s.sums[w.field]; ok {
			b = protowire.AppendTag(b, w.field, protowire.VarintType)
			b = protowire.AppendVarint(b, n)
		}
	}
	if b == nil {
		return nil
	}
	return codec.NewFrame(b)
}

// fieldCount returns how many fields a well-formed message has: the items of a list from the cache.
func fieldCount(message []byte) (n uint64) {
	for range wire.Fields(message) {
		n++
	}
	return n
}

// lastNumber returns the last value of a field in a well-formed message: the one that counts.
func lastNumber(message []byte, field protoreflect.FieldNumber) (last uint64) {
	for f := range wire.Fields(message) {
		if f.Number == field && f.Type == protowire.VarintType {
			last = f.Uint()
		}
	}
	return last
}
