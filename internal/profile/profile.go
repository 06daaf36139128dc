// Package profile is the language that describes an API: which fields hold names that belong to
// one backend, what these names look like in front, and where the calls go of methods for which
// that does not follow from the fields. docs/profile.md describes the language; criadapter/cri.yaml
// is the profile of CRI.
//
// A [Profile] is plain data, read from YAML by [Parse]. [Profile.Extend] adds rules to it, and
// [Profile.Fit] removes rules for what another version of the API does not have. [VersionsOf] says how
// a call is made in each version. The packages that compile a profile against a schema check that its
// fields and methods exist: director, inventory and drift.
package profile

import (
	"errors"

	"go.yaml.in/yaml/v3"

	"github.com/criproxy/criproxy/internal/base/strict"
	"github.com/criproxy/criproxy/internal/inventory"
)

// A Profile describes an API. It is immutable once it has been read.
type Profile struct {
	// Versions are the versions of the API, newest first. Each is a package, with the packages
	// inside it. A client may speak any version; its calls are converted to the newest.
	Versions []Version `yaml:"versions"`

	// Probe is the method, as "Service/Method", that a connection calls with an empty message
	// to find out which versions a backend speaks. A profile with one version needs none.
	Probe string `yaml:"probe"`

	// Names are the kinds of names that belong to one backend.
	Names map[string]NameForm `yaml:"names"` // :: kind → form

	// Edits are classes of fields whose content a function adapts.
	Edits map[string]EditForm `yaml:"edits"` // :: class → function

	// Fields are the fields that hold names, or content for edits: "Message.field" or
	// "*.field" → kind or class. The rule applies on every path that reaches the field.
	Fields map[string]string `yaml:"fields"`

	// Harmless are string and bytes fields that hold no name of a backend: message → fields.
	// They are neither translated nor reported, even if a pattern under Fields matches them.
	Harmless map[string][]string `yaml:"harmless"`

	// About are the fields that say, where people see calls, what a call is about:
	// "Message.field" or "*.field" → "id", "name" or "namespace". Fields of names that belong
	// to one backend count as ids without a rule here.
	About map[string]string `yaml:"about"`

	// Methods are rules for single methods, by the name of the method: "Get", or "Books/Get" if
	// two services have a method of that name. A key may hold several names and patterns:
	// "List*|ImageFsInfo". A name goes before a pattern.
	Methods map[string]MethodForm `yaml:"methods"`

	// Written says which names the client gets back as it wrote them: with the prefix of their
	// backend, or without it. Optional.
	Written WrittenForm `yaml:"written"`

	// Unimplemented are patterns of methods of this API that fail with Unimplemented if the
	// schema does not have them and there are several backends: "List*", because the
	// primary has only a part of a list. Other methods that the schema does not have go to
	// the primary.
	Unimplemented []string `yaml:"unimplemented"`

	// Elsewhere are methods, as "package.Service/Method", that look up an object and that the
	// schema does not have. The director asks one backend after another, the primary first, until
	// one has the object.
	Elsewhere []string `yaml:"elsewhere"`

	// Known says which lists and replies of a backend its cache keeps, to answer for it while it is
	// slow or gone, and which lists exist in two forms. See [inventory.Spec].
	Known inventory.Spec `yaml:"known"`

	// Secret fields are hidden wherever a message is shown, like those that the schema marks
	// with debug_redact: "Message.field", "*.field", or, for the value of one key of a map,
	// "*.annotations[\"key\"]". A star stands for any message.
	Secret []string `yaml:"secret"`

	// Reads are patterns of the names of methods that change nothing: an access list allows
	// them with read-only.
	Reads []string `yaml:"reads"`

	// Volatile are fields that differ each time the same calls run, such as times and
	// measurements, and that a comparison leaves out: "Message.field", in which a star stands
	// for any text. A star alone in place of the field means all numbers of the message.
	Volatile []string `yaml:"volatile"`

	// Quiet is the log level, from 4 on, at which the calls of a method are logged:
	// "List*|Stream*" → 5. Level 3 logs the calls of all other methods.
	Quiet map[string]int `yaml:"quiet"`

	places strict.Places // of its keys
	fitted bool          // written for another version of the API
}

// A Version is one package of the API.
type Version struct {
	Package string `yaml:"package"`
	// Convert names the conversions, in order, that convert its messages to the
	// newest version. Optional: most versions differ by name only.
	Convert []string `yaml:"convert"`
}

// A NameForm says what the names of one kind look like in front.
type NameForm struct {
	// Front is the form of a name of a backend other than the primary, such as
	// "{backend}__{name}". The primary's names are the same on both sides.
	Front string `yaml:"front"`

	// Bare says who owns a front name without such a prefix. "primary": the primary owns it,
	// and a name with the prefix of no backend is an error. "anyone": the name does not tell,
	// and a prefix that is no backend's is a part of the name.
	Bare string `yaml:"bare"`

	// Map names the table, in the Maps of a backend, that translates these names in place of
	// Front. Such a name decides where a call goes only if a method chooses by it.
	Map string `yaml:"map"`

	// Empty are fields, as "Message.field", in which the empty name, that of a default, is
	// translated as well. If the table of a backend other than the primary maps a name to the
	// empty one, the field gets that name in replies of the backend. It is for Map.
	Empty []string `yaml:"empty"`
}

// An EditForm names the function, in the director's Edits, for a class of fields.
type EditForm struct {
	Replies string `yaml:"replies"` // for replies of a backend on their way to the client
}

// A WrittenForm says where a backend keeps a note that a client wrote a name with the backend's
// prefix. The note is an entry of a map in the object that has the name.
type WrittenForm struct {
	// Requests get such a note, by method, if the first of the names that the request has
	// carries the prefix.
	Requests map[string]NotedForm `yaml:"requests"`

	// Replies are messages, by name, in which the note comes back. The director removes
	// the note and prefixes the names. The fields of these names need an edit that does not
	// translate them.
	Replies map[string]NotedForm `yaml:"replies"`
}

// A NotedForm has paths in a message.
type NotedForm struct {
	Names []string `yaml:"names"`
	Note  string   `yaml:"note"` // the map
}

// A MethodForm has the rules of a profile for a method. With the zero value, a call goes to the
// owner of the names in its request, else to the primary.
type MethodForm struct {
	// Choose lists ways to find the backend. The first one that finds a backend decides.
	Choose []ChooseForm `yaml:"choose"`

	// Tells is for choosers of the kind "told": path of a value → path of a name. After a
	// request with both, the value stands for the backend that owns the name.
	Tells map[string]string `yaml:"tells"`

	// All sends the call to all backends. "concat" joins their replies, or the streams of a
	// streaming method, the primary's first. "pages" goes through the backends page by page, the
	// primary's first. "mirror" makes the call on the primary, and sends the request to the
	// others later. "endless" joins streams that last until the client ends them: if one ends,
	// the others go on, and it is opened again. Any other word names a function in the
	// director's Merges, for methods with one reply.
	All string `yaml:"all"`

	// Resync names, for all: endless, the function in the director's Resyncs that makes the
	// messages that a stream missed. Without it they are lost.
	Resync string `yaml:"resync"`

	// Winners say, for all: concat, which value a field that is no list gets: field →
	// "primary", the primary's value; "first" or "last", that of the first or last backend that
	// has one; "sum", the sum of all. Such a field must have a winner.
	Winners map[string]string `yaml:"winners"`

	// Pages names, for all: pages, the fields of a page.
	Pages PageForm `yaml:"pages"`

	// First asks one backend after another, the primary first, until a reply has
	// this field. If no reply has it, the client gets the primary's.
	First string `yaml:"first"`

	// Unsure is a path in the request, for first. If no reply has the field of first, and
	// another backend than the primary has failed, a call with a value at this path succeeds;
	// any other call fails. Optional.
	Unsure string `yaml:"unsure"`

	// New marks a method that creates objects: if neither a name nor a chooser decides,
	// the call goes to the backend that the director's NewTo names. Optional.
	New *NewForm `yaml:"new"`

	// Withhold removes fields from a request if the name at a path differs between front and
	// backend: field → path. It keeps credentials for one name from being used for another.
	// Trusted backends get the fields all the same.
	Withhold map[string]string `yaml:"withhold"`

	// Mismatch is the status of a request whose names belong to different backends, or to
	// another backend than a chooser finds: "invalid" (the default), or "not-found".
	Mismatch string `yaml:"mismatch"`

	// Missing says what happens to a call to all backends if the primary does not implement the
	// method: "fail" (the default), or "skip" the primary, unless no backend implements it.
	// Other backends are always skipped.
	Missing string `yaml:"missing"`
}

// Endless reports whether the calls of a method are endless streams.
func (p *Profile) Endless(method string) bool {
	form, _, err := p.Method(method)
	return err == nil && form.All == "endless"
}

// A NewForm says which calls create an object that any backend can have.
type NewForm struct {
	// Unless is a path in the request. A call with a value there goes to the backend whose table
	// has the value, or else to the primary. Optional.
	Unless string `yaml:"unless"`
}

// A PageForm says how a method lists page by page.
type PageForm struct {
	Token string `yaml:"token"` // path in the request: the token of the wanted page
	Size  string `yaml:"size"`  // path in the request: the largest number of items, 0 for all
	Next  string `yaml:"next"`  // path in the reply: the token of the next page
	Items string `yaml:"items"` // path in the reply: the list
}

// A ChooseForm is one way to choose a backend: a kind of name, and the path of such a name in the
// request. The kind "backend" is the name of a backend itself. "known" chooses the first backend
// whose cache has an item that matches the request. "told" chooses the backend that an earlier
// request told, see Tells. Both go before all other kinds.
//
//	handler: runtime_handler
//	backend: config.annotations["kubernetes.io/target-runtime"]
//	namespace: metadata["containerd-namespace"]
//	known: ListPodSandbox.metadata.uid = sandbox_config.metadata.uid
//	known: ListImages = image.image   # by id, or any other name of an item
//	known: ListPodSandbox.annotations = image.annotations without "a/b" # a whole map, if one backend alone has it
//	told: image.annotations["a/b"]
type ChooseForm struct {
	Kind string
	Path string
}

// UnmarshalYAML reads a ChooseForm, which is written as one key and value.
func (c *ChooseForm) UnmarshalYAML(n *yaml.Node) error {
	var m map[string]string
	if err := n.Decode(&m); err != nil || len(m) != 1 {
		return errors.New(`want one "kind: path", such as "handler: runtime_handler"`)
	}
	for c.Kind, c.Path = range m {
	}
	return nil
}

// Parse reads a profile written in YAML. The error names every mistake. With an error, Parse also
// returns the valid part of the profile, or nil if there is none. [Profile.Misfits], and the
// packages that compile the profile, check that its fields and methods exist.
func Parse(data []byte) (*Profile, error) {
	p := &Profile{places: strict.PlacesIn(data)}
	err := strict.UnmarshalRest(data, p)
	if err != nil && len(p.Versions) == 0 {
		return nil, err // further mistakes may only follow from it
	}
	return p, strict.InOrder(errors.Join(err, p.Located(p.Check())))
}

// ParseRules reads a part of a profile, for [Profile.Extend].
func ParseRules(data []byte) (*Profile, error) {
	p := &Profile{}
	if err := strict.Unmarshal(data, p); err != nil {
		return nil, err
	}
	p.places = strict.PlacesIn(data)
	return p, nil
}
