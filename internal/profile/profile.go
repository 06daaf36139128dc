package profile

import (
	"errors"

	"go.yaml.in/yaml/v3"

	"github.com/criproxy/criproxy/internal/lastknown"
	"github.com/criproxy/criproxy/internal/strict"
)

// A Profile says what an API means, in the multiplexer's words: which fields
// hold names, how the names look in front, and what is to be done with the few
// methods for which that does not follow from their fields. It is data; the
// language is documented in docs/profile.md.
type Profile struct {
	// Versions are the packages that are one API on the wire, newest first. A package
	// stands for those inside of it as well.
	// Inside, everything is the newest; a client may speak any.
	Versions []Version `yaml:"versions"`

	// Probe is the method, as "Service/Method", that is called with an empty
	// message to find out which versions a backend speaks. Needed only if there
	// is more than one version.
	Probe string `yaml:"probe"`

	// Names are the kinds of names that belong to one backend.
	Names map[string]NameForm `yaml:"names"` // :: kind → form

	// Edits are classes of fields whose content some code has to adapt.
	Edits map[string]EditForm `yaml:"edits"` // :: class → code

	// Fields say where the names, and what the edits are for, stand:
	// "Message.field" or "*.field" → kind or class. Every path that reaches a
	// field follows.
	Fields map[string]string `yaml:"fields"`

	// Harmless are string and bytes fields that somebody looked at and found to
	// hold nothing that belongs to one backend: message → fields. They are not
	// touched, and not reported, whatever pattern under Fields matches them.
	Harmless map[string][]string `yaml:"harmless"`

	// Methods are the exceptions, by method name, "Get", or, where two services have
	// one of that name, "Books/Get". A key may hold several names and patterns:
	// "List*|ImageFsInfo". A name goes before a pattern.
	Methods map[string]MethodForm `yaml:"methods"`

	// Written says which names come back with the prefix of their backend if they were
	// written with it, and without it if not. Optional.
	Written WrittenForm `yaml:"written"`

	// Unimplemented are patterns of the names of methods of this API that are answered
	// with Unimplemented when the schema does not have them and there is more than one
	// backend: "List*", of which the primary alone has but a part. All others that the
	// schema does not have go to the primary.
	Unimplemented []string `yaml:"unimplemented"`

	// Known says what is remembered of a backend, to answer for it when it is
	// gone, and which lists exist in two forms. See [lastknown.Spec].
	Known lastknown.Spec `yaml:"known"`

	// Secret fields are hidden wherever a message is shown, in addition to those
	// that the schema marks with debug_redact: "Message.field" or "*.field", or the
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

	// Quiet is the level of the log, from 4 on, at which the calls of a method are
	// shown, for those that only look: "List*|Stream*" → 5. All others are at 3.
	Quiet map[string]int `yaml:"quiet"`

	places map[string]string // :: path of a key → where it was read from
	fitted bool              // it was written for another version of the API
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

// A WrittenForm says how a backend keeps for us that a client wrote a name with the
// backend's prefix: in a note, an entry of a map that belongs to the thing so named.
type WrittenForm struct {
	// Requests are those that get such a note, by method: if the first of the names that
	// is there has the prefix.
	Requests map[string]NotedForm `yaml:"requests"`

	// Replies are messages in which the note comes back, by their name. It is taken out of
	// there, and the names get the prefix; their fields have to be of an edit that
	// leaves names alone.
	Replies map[string]NotedForm `yaml:"replies"`
}

// A NotedForm is paths in a message.
type NotedForm struct {
	Names []string `yaml:"names"`
	Note  string   `yaml:"note"` // the map
}

// A MethodForm is what the profile says of a method.
type MethodForm struct {
	// Choose lists ways to find the backend, the first that says one decides.
	Choose []ChooseForm `yaml:"choose"`

	// Tells says what a request tells, for choosers of the kind "told": the value at a path
	// goes with the backend that the name at another path belongs to.
	Tells map[string]string `yaml:"tells"`

	// All sends the call to all backends. "concat" joins their replies, the
	// primary's first; of a stream it joins the streams. "pages" goes through them
	// page by page, the primary's first. "endless" joins streams that do not end by
	// themselves: each goes on whatever becomes of the others, and is opened again when
	// it ends. Any other word names code in [Config.Merges], for methods with one reply.
	All string `yaml:"all"`

	// Recap names, for all: endless, the code in [Config.Recaps] that tells what a stream
	// missed. Optional: without it that is lost.
	Recap string `yaml:"recap"`

	// Winners say, for all: concat, whose value is taken of a field that is no list:
	// field → "primary", of the primary alone; "first", of the first backend that has
	// one; "last". Without it such fields are a mistake.
	Winners map[string]string `yaml:"winners"`

	// Pages says, for all: pages, how a page is asked for.
	Pages PageForm `yaml:"pages"`

	// First asks one backend after another, the primary first, until a reply has
	// this field. If none has, the reply is the primary's.
	First string `yaml:"first"`

	// Unsure is a path in the request, for first: a call that has a value there ends well if
	// the primary does not have what is asked for, and others cannot be asked. Any other
	// call fails then. Optional.
	Unsure string `yaml:"unsure"`

	// New says that the method makes something that belongs to nobody yet: where
	// nothing else says whose the call is, it goes to [Config.NewTo]. Optional.
	New *NewForm `yaml:"new"`

	// Withhold are fields that are removed from a request if the name at a path is
	// another one in front than at the backend: field → path. Credentials for
	// a name go nowhere else. A backend with [Backend.Trusted] gets them all the
	// same.
	Withhold map[string]string `yaml:"withhold"`

	// Mismatch is the status of a request whose names belong to different backends, or to
	// another one than it is for: "invalid" (the default), or "not-found", where the API
	// says that of what a backend does not have.
	Mismatch string `yaml:"mismatch"`

	// Missing says what a backend that does not implement the method means for a
	// call to all of them: "fail" (the default), or "skip" it unless none has it.
	Missing string `yaml:"missing"`
}

// Endless reports whether the calls of a method, in whichever version, do not end by
// themselves.
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

// A ChooseForm is one way to choose a backend: the kind of name and the path in
// the request where it stands. The kind "backend" is the name of a backend
// itself. The kind "known" is no name: the backend is the first that is known to
// have an item that agrees with the request. Nor is "told": the backend is the one that an
// earlier request told, see Tells. Both go before all others.
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

// UnmarshalYAML reads the one key and value a ChooseForm is written as.
func (c *ChooseForm) UnmarshalYAML(n *yaml.Node) error {
	var m map[string]string
	if err := n.Decode(&m); err != nil || len(m) != 1 {
		return errors.New(`want one "kind: path", such as "handler: runtime_handler"`)
	}
	for c.Kind, c.Path = range m {
	}
	return nil
}

// Parse reads a profile written in YAML. Its error names every mistake.
// Whether the fields and methods it names exist is found by [New], which has
// the schema.
func Parse(data []byte) (*Profile, error) {
	p, err := ParseRules(data)
	if err != nil {
		return nil, err
	}
	return p, p.Located(p.Check())
}

// ParseRules reads a part of a profile, for [Profile.Extend].
func ParseRules(data []byte) (*Profile, error) {
	p := &Profile{}
	if err := strict.Unmarshal(data, p); err != nil {
		return nil, err
	}
	p.parsed(data)
	return p, nil
}
