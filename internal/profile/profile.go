// Package profile is the language that says what an API means: which fields hold names that
// belong to one backend, how these names look in front, and what is to be done with the methods
// for which that does not follow. docs/profile.md describes it, criadapter/cri.yaml is the
// profile of CRI.
//
// A [Profile] is plain data, read from YAML by [Parse]. [Profile.Extend] adds rules to it, and
// [Profile.Fit] removes what another version of the API does not have. Whether all that it names
// exists is found by the packages that compile it against a schema: director, lastknown, drift.
package profile

import (
	"errors"

	"go.yaml.in/yaml/v3"

	"github.com/criproxy/criproxy/internal/lastknown"
	"github.com/criproxy/criproxy/internal/strict"
)

// A Profile says what an API means. Nothing in it changes after it was read.
type Profile struct {
	// Versions are the packages that are one API on the wire, newest first. A package stands
	// for those inside it as well. A client may speak any version; it is translated to the
	// newest.
	Versions []Version `yaml:"versions"`

	// Probe is the method, as "Service/Method", that a connection calls with an empty message
	// to find out which versions a backend speaks. A profile with one version needs none.
	Probe string `yaml:"probe"`

	// Names are the kinds of names that belong to one backend.
	Names map[string]NameForm `yaml:"names"` // :: kind → form

	// Edits are classes of fields whose content some code has to adapt.
	Edits map[string]EditForm `yaml:"edits"` // :: class → code

	// Fields say where names stand, and what edits are for: "Message.field" or "*.field" →
	// kind or class. The rule holds on every path that reaches the field.
	Fields map[string]string `yaml:"fields"`

	// Harmless are string and bytes fields that were looked at and hold nothing of one backend:
	// message → fields. They are neither translated nor reported, whatever pattern under
	// Fields matches them.
	Harmless map[string][]string `yaml:"harmless"`

	// About says from which fields one sees what a call is about, where calls are shown:
	// "Message.field" or "*.field" → "id", "name" or "namespace". The fields of names that
	// belong to one backend are ids without it.
	About map[string]string `yaml:"about"`

	// Methods are the exceptions, by the name of a method, "Get", or "Books/Get" if two
	// services have one of that name. A key may hold several names and patterns:
	// "List*|ImageFsInfo". A name goes before a pattern.
	Methods map[string]MethodForm `yaml:"methods"`

	// Written says which names come back as a client wrote them: with the prefix of their
	// backend, or without it. Optional.
	Written WrittenForm `yaml:"written"`

	// Unimplemented are patterns of methods of this API that fail with Unimplemented if the
	// schema does not have them and there is more than one backend: "List*", because the
	// primary has only a part of a list. Other methods that the schema does not have go to
	// the primary.
	Unimplemented []string `yaml:"unimplemented"`

	// Elsewhere are methods that the schema does not have, as "package.Service/Method", and that look one thing up. One
	// backend after another is asked, the primary first, until one has it.
	Elsewhere []string `yaml:"elsewhere"`

	// Known says what memory keeps of a backend, to answer for it when it is gone, and which
	// lists exist in two forms. See [lastknown.Spec].
	Known lastknown.Spec `yaml:"known"`

	// Secret fields are hidden wherever a message is shown, as are those that the schema marks
	// with debug_redact: "Message.field" or "*.field", or the
	// values of some keys of a map: "*.annotations[\"key\"]", in which a star stands
	// for anything.
	Secret []string `yaml:"secret"`

	// Reads are patterns of the names of methods that change nothing: what an access list
	// means by read-only.
	Reads []string `yaml:"reads"`

	// Volatile are fields that are another in each run of the same calls, such as times and
	// measurements, which a comparison leaves out: "Message.field", in which a star stands
	// for anything. A field that is a star alone means the message's numbers.
	Volatile []string `yaml:"volatile"`

	// Quiet is the level of the log, from 4 on, that shows the calls of a method:
	// "List*|Stream*" → 5. Level 3 shows those of all other methods.
	Quiet map[string]int `yaml:"quiet"`

	places strict.Places // of its keys
	fitted bool          // it was written for another version of the API
}

// A Version is one package of the API.
type Version struct {
	Package string `yaml:"package"`
	// Convert names the conversions, in order, that turn its messages into those
	// of the newest version. Optional: most versions differ by name only.
	Convert []string `yaml:"convert"`
}

// A NameForm says how the names of one kind look in front.
type NameForm struct {
	// Front is the form of a name of a backend other than the primary, such as
	// "{backend}__{name}". The primary's names are the same on both sides.
	Front string `yaml:"front"`

	// Bare says what a front name without such a prefix is: "primary", the
	// primary's, in which case a prefix that is no backend's is an error;
	// "anyone", it does not say, and a prefix that is no backend's is part of
	// the name.
	Bare string `yaml:"bare"`

	// Map names the table in [Backend.Maps] that translates these names, in
	// place of Front. Such names decide nothing but where a method chooses by
	// them.
	Map string `yaml:"map"`

	// Empty are fields, as "Message.field", in which no name is one as well: that of a
	// default. A table that maps a name to it applies there too, to replies of other
	// backends than the primary. It is for Map.
	Empty []string `yaml:"empty"`
}

// An EditForm names the code, in [Config.Edits], for a class of fields.
type EditForm struct {
	Replies string `yaml:"replies"` // for replies of a backend on their way to the client
}

// A WrittenForm says where a backend keeps that a client wrote a name with the backend's
// prefix: in a note, which is an entry of a map of the thing that has the name.
type WrittenForm struct {
	// Requests get such a note, by method, if the first name that the request has carries the
	// prefix.
	Requests map[string]NotedForm `yaml:"requests"`

	// Replies are messages in which the note comes back, by their name. The director removes
	// the note and prefixes the names, whose fields need an edit that leaves names alone.
	Replies map[string]NotedForm `yaml:"replies"`
}

// A NotedForm is paths in a message.
type NotedForm struct {
	Names []string `yaml:"names"`
	Note  string   `yaml:"note"` // the map
}

// A MethodForm is what the profile says of a method. The zero value says that the method goes
// to the owner of the names in its request, else to the primary.
type MethodForm struct {
	// Choose lists ways to find the backend, the first that says one decides.
	Choose []ChooseForm `yaml:"choose"`

	// Tells is for choosers of the kind "told": path of a value → path of a name. From such a
	// request on, the value means the backend that owns the name.
	Tells map[string]string `yaml:"tells"`

	// All sends the call to all backends. "concat" joins their replies, the
	// primary's first; of a stream it joins the streams. "pages" goes through them
	// page by page, the primary's first. "mirror" makes the call on the primary, and sends
	// the request to the others behind the scenes. "endless" joins streams that do not end by
	// themselves: each goes on whatever becomes of the others, and is opened again when
	// it ends. Any other word names code in [Config.Merges], for methods with one reply.
	All string `yaml:"all"`

	// Recap names, for all: endless, the code in the director's Recaps that makes up what a
	// stream missed. Without it that is lost.
	Recap string `yaml:"recap"`

	// Winners say, for all: concat, which value a field that is no list gets: field →
	// "primary", that of the primary alone; "first", that of the first backend which has one;
	// "last". Such a field without a winner is a mistake.
	Winners map[string]string `yaml:"winners"`

	// Pages says, for all: pages, how a page is asked for.
	Pages PageForm `yaml:"pages"`

	// First asks one backend after another, the primary first, until a reply has
	// this field. If none has, the reply is the primary's.
	First string `yaml:"first"`

	// Unsure is a path in the request, for first. If the primary does not have what the call
	// asks for and another backend does not answer, a call with a value there succeeds; any
	// other fails. Optional.
	Unsure string `yaml:"unsure"`

	// New says that the method makes something new: if neither a name nor a chooser decides,
	// it goes to the backend that the director's NewTo names. Optional.
	New *NewForm `yaml:"new"`

	// Withhold removes fields from a request if the name at a path differs between front and
	// backend: field → path. Credentials for a name go nowhere else. Trusted backends get the
	// fields all the same.
	Withhold map[string]string `yaml:"withhold"`

	// Mismatch is the status of a request whose names belong to different backends, or to
	// another backend than a chooser finds: "invalid" (the default), or "not-found".
	Mismatch string `yaml:"mismatch"`

	// Missing says what becomes of a call to all backends if one does not implement the method:
	// "fail" (the default), or "skip" that backend unless none implements it.
	Missing string `yaml:"missing"`
}

// Endless reports whether the calls of a method do not end by themselves.
func (p *Profile) Endless(method string) bool {
	form, _, err := p.Method(method)
	return err == nil && form.All == "endless"
}

// A NewForm says which calls make something that any backend can have.
type NewForm struct {
	// Unless is a path in the request: a call that has a value there wants a certain
	// backend, the primary if no table says otherwise. Optional.
	Unless string `yaml:"unless"`
}

// A PageForm says how a method lists page by page.
type PageForm struct {
	Token string `yaml:"token"` // path in the request: where to go on
	Size  string `yaml:"size"`  // path in the request: the most items wanted, 0 for all
	Next  string `yaml:"next"`  // path in the reply: the token of the next page
	Items string `yaml:"items"` // path in the reply: the list
}

// A ChooseForm is one way to choose a backend: a kind of name, and the path in the request
// where such a name stands. The kind "backend" is the name of a backend itself. "known" takes
// the first backend of which memory has an item that agrees with the request, "told" the one
// that an earlier request named, see Tells; both go before all others.
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

// Parse reads a profile written in YAML. Its error names every mistake; the profile is what is
// right of it then, and nil if nothing is. Whether the fields and methods that it names exist is
// found where it is compiled, and by [Profile.Misfits].
func Parse(data []byte) (*Profile, error) {
	p := &Profile{places: strict.PlacesIn(data)}
	err := strict.UnmarshalRest(data, p)
	if err != nil && len(p.Versions) == 0 {
		return nil, err // of which the rest may follow
	}
	return p, errors.Join(err, p.Located(p.Check()))
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
