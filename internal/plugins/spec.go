package plugins

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/criproxy/criproxy/internal/base/strict"
)

// A Spec says when to ask plugins about the calls of an API, and what their answers change. It is
// data, written in YAML as docs/hooks.md explains. [New] resolves it against descriptors.
type Spec struct {
	// Objects are the kinds of objects that calls are about: kind → what plugins get about one.
	Objects map[string]Object `yaml:"objects"`

	// Calls are the calls with points for plugins, by method name.
	Calls map[string]Call `yaml:"calls"`

	// Answers say what a plugin's answer changes: message → field → rule. It changes the field
	// of the same name in the object's message.
	Answers map[string]map[string]Rule `yaml:"answers"`

	// Secret are fields of objects whose values are never shown.
	Secret []string `yaml:"secret"`

	// Elsewhere are points of other programs. A plugin's file may name them, without a warning,
	// but criproxy has no such points.
	Elsewhere []string `yaml:"elsewhere"`

	// Volatile are labels that differ between two pods of the same server. See
	// [Config.Servers].
	Volatile []string `yaml:"volatile"`
}

// An Object is a kind of object that calls create, change and remove. All its fields but Message,
// Parent and Inherit name fields of the message that plugins get about such an object, which has each of them but ID.
type Object struct {
	Message string `yaml:"message"` // the message that plugins get
	ID      string `yaml:"id"`      // holds the object's own id, once it has one. Optional

	// Labels is a map of strings. Plugins are not asked about an object that has the label of
	// [Config.Skip].
	Labels string `yaml:"labels"`

	// UID, Namespace and Name identify the pod, so that the package recognizes the pod that
	// serves a plugin: the cgroup of its processes has the UID in its name.
	UID       string `yaml:"uid"`
	Namespace string `yaml:"namespace"`
	Name      string `yaml:"name"`

	// Asked is a field, such as the resources. At a call that may change it, plugins get its value
	// as a client last asked for it, not as plugins have changed it: a plugin that reduces a quota
	// by a fifth would otherwise reduce it again at each call.
	Asked string `yaml:"asked"`

	// Parent is the kind of object that this one is in. Inherit says which fields of the parent
	// the message has: field → field of the parent's message.
	Parent  string            `yaml:"parent"`
	Inherit map[string]string `yaml:"inherit"`
}

// A Call is a method before or after which plugins are called.
type Call struct {
	Makes string `yaml:"makes"` // the kind of object that the call creates
	About string `yaml:"about"` // or the kind of object that the call is about
	Ends  bool   `yaml:"ends"`  // the call removes that object, and all objects in it

	// ID is the path of the object's id: in the reply if the call creates the object, otherwise
	// in the request. Parent is the path in the request of the id of the parent of a new object.
	ID     string `yaml:"id"`
	Parent string `yaml:"parent"`

	// Before and After are the points. The method of a plugin has the name of the point
	// with "Hook" appended.
	Before string `yaml:"before"`
	After  string `yaml:"after"`

	// Unheeded are fields of an answer that change nothing at this call.
	Unheeded []string `yaml:"unheeded"`

	// Fill says which fields of the object the request has: field of the object's message →
	// path in the request. Messages are copied field by field, by name. A list of keys and
	// values is copied to a map. A field that is empty in the request stays as it was. The same
	// table says where to put the changes of an answer.
	Fill map[string]string `yaml:"fill"`
}

// A Rule says when a field of an answer changes something.
//
//	positive, nonzero   a number that is positive, or not zero. A range may follow: "nonzero -1000..1000"
//	nonempty            a string that is not empty
//	any                 any string, even an empty one
//	merge               a map, key by key; no key is removed
//	replace             a whole map or list, if it is not empty
//	fields              a message, if it is set, by the rules of its own fields
type Rule struct {
	Kind     string
	Min, Max int64 // of a number
}

var ruleKinds = []string{"positive", "nonzero", "nonempty", "any", "merge", "replace", "fields"}

// UnmarshalYAML reads a rule as it is written.
func (r *Rule) UnmarshalYAML(n *yaml.Node) error {
	*r = Rule{Min: math.MinInt64, Max: math.MaxInt64}
	if read, err := fmt.Sscanf(n.Value, "%s %d..%d", &r.Kind, &r.Min, &r.Max); read != 1 && err != nil || !slices.Contains(ruleKinds, r.Kind) {
		return fmt.Errorf("invalid rule %q: want one of %s, or one of the first two with a range, as in -1000..1000", n.Value, strings.Join(ruleKinds, ", "))
	}
	return nil
}

// ParseSpec reads a spec written in YAML. The error names every mistake in the text. [New], which
// has the schemas, checks that the fields and methods in the spec exist.
func ParseSpec(data []byte) (*Spec, error) {
	s := &Spec{}
	if err := strict.Unmarshal(data, s); err != nil {
		return nil, err
	}
	return s, nil
}
