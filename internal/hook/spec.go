package hook

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/criproxy/criproxy/internal/strict"
)

// A Spec says what plugins are asked about an API, and what their answers change. It
// is data, in YAML as docs/hooks.md explains it; [New] holds it against descriptors.
type Spec struct {
	// Objects are the things that calls are about: kind → what plugins get of one.
	Objects map[string]Object `yaml:"objects"`

	// Calls are those at which plugins can be called, by method name.
	Calls map[string]Call `yaml:"calls"`

	// Answers say what a plugin's answer changes: message → field → rule. The field
	// of the same name in the object's message is what it changes.
	Answers map[string]map[string]Rule `yaml:"answers"`

	// Secret are fields of objects whose values are never shown.
	Secret []string `yaml:"secret"`

	// Elsewhere are points that plugins name in their files for other programs than this one. criproxy
	// asks no plugin there, and does not warn of them.
	Elsewhere []string `yaml:"elsewhere"`

	// Volatile are labels that differ between two runs of the same server. See
	// [Config.Servers].
	Volatile []string `yaml:"volatile"`
}

// An Object is a kind of thing that calls make, change and remove, and what plugins get to
// know of it. All but Parent and Inherit are fields of its message.
type Object struct {
	Message string `yaml:"message"` // what plugins get
	ID      string `yaml:"id"`      // where its own id stands, once there is one. Optional

	// Labels is a map of strings. An object that has the label of [Config.Skip] is
	// none of the plugins' business.
	Labels string `yaml:"labels"`

	// UID, Namespace and Name identify the pod, so that criproxy recognizes the one that serves a
	// plugin. The UID stands in the name of the cgroup of its processes.
	UID       string `yaml:"uid"`
	Namespace string `yaml:"namespace"`
	Name      string `yaml:"name"`

	// Asked is a field, such as the resources, that plugins get as a client last asked for it when
	// a call may change it, and not as plugins have made it: one that takes a fifth off a quota would
	// otherwise take it off again at each call. Optional.
	Asked string `yaml:"asked"`

	// Parent is the kind of thing that the object is in. Inherit says what of the parent stands
	// in the object's message: field → field of the parent's message.
	Parent  string            `yaml:"parent"`
	Inherit map[string]string `yaml:"inherit"`
}

// A Call is a method before or after which plugins are called.
type Call struct {
	Makes string `yaml:"makes"` // the kind of object that it makes
	About string `yaml:"about"` // or the kind of object that it is about
	Ends  bool   `yaml:"ends"`  // it removes that object, and all that lie in it

	// ID is the path of the object's id: in the request, or if the object is made, in
	// the reply. Parent is the path in the request of the id of what it is made in.
	ID     string `yaml:"id"`
	Parent string `yaml:"parent"`

	// Before and After are the points. What a plugin is called is the name of the point
	// with "Hook" behind it.
	Before string `yaml:"before"`
	After  string `yaml:"after"`

	// Unheeded are fields of an answer that change nothing at this call.
	Unheeded []string `yaml:"unheeded"`

	// Fill says what the request has of the object: field of the object's message → path
	// in the request. Messages are taken field by field, by name; a list of keys and values
	// is taken as a map. What is empty in the request stays as it was. The same table says
	// where an answer's changes go.
	Fill map[string]string `yaml:"fill"`
}

// A Rule says when a field of an answer changes something.
//
//	positive, nonzero   a number, if it is. A range may follow: "nonzero -1000..1000"
//	nonempty            a string, if it is
//	any                 a string, also the empty one
//	merge               a map, key by key; no key is removed
//	replace             a map or list as a whole, if it is not empty
//	fields              a message, if it is there, by the rules of its own fields
type Rule struct {
	Kind     string
	Min, Max int64 // of a number
}

var ruleKinds = []string{"positive", "nonzero", "nonempty", "any", "merge", "replace", "fields"}

// UnmarshalYAML reads a rule as it is written.
func (r *Rule) UnmarshalYAML(n *yaml.Node) error {
	kind, limits, limited := strings.Cut(n.Value, " ")
	if !slices.Contains(ruleKinds, kind) {
		return fmt.Errorf("%q is no rule: want one of %s", kind, strings.Join(ruleKinds, ", "))
	}
	*r = Rule{Kind: kind, Min: math.MinInt64, Max: math.MaxInt64}
	if limited {
		from, to, ok := strings.Cut(limits, "..")
		var errs [2]error
		r.Min, errs[0] = strconv.ParseInt(from, 10, 64)
		r.Max, errs[1] = strconv.ParseInt(to, 10, 64)
		if !ok || errors.Join(errs[:]...) != nil {
			return fmt.Errorf("%q is no range: want two numbers as in -1000..1000", limits)
		}
	}
	return nil
}

// ParseSpec reads a spec written in YAML. Its error names every mistake. Whether what
// it names exists is found by [New], which has the schemas.
func ParseSpec(data []byte) (*Spec, error) {
	s := &Spec{}
	if err := strict.Unmarshal(data, s); err != nil {
		return nil, err
	}
	return s, nil
}
