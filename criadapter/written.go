package criadapter

import (
	"bytes"

	"google.golang.org/protobuf/reflect/protoreflect"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/profile"
	"github.com/criproxy/criproxy/rewrite"
)

// asWritten returns the edit for the image of a container. A runtime gives an id or a name. An id
// is one of those in its list of images, and gets the runtime's prefix as they do. A name is for
// people to compare with the one in their pod, and stays as it is: a client that wrote it
// with a prefix has got that back from the note in the container's annotations. Other fields of
// the image are translated as everywhere.
func asWritten(p *director.Profile, s *codec.Schema) (func(director.EditContext) director.Edit, error) {
	fields, err := profile.FieldsOf(p, s)
	if err != nil {
		return nil, err
	}
	spec := imageSpec(s)
	kinds := []string{written: ""} // :: class → kind of name
	var rules []rewrite.Rule
	for i := range spec.Fields().Len() {
		fd := spec.Fields().Get(i)
		kind := fields.Kind(fd)
		class := rewrite.Class(len(kinds))
		switch {
		case fd.Name() == "image" || fd.Name() == "user_specified_image":
			class = written
		case kind == "":
			continue
		default:
			kinds = append(kinds, kind)
		}
		rules = append(rules, rewrite.Rule{Field: string(fd.FullName()), Class: class})
	}
	classes, err := rewrite.Classify([]protoreflect.MessageDescriptor{spec}, rules)
	if err != nil {
		return nil, err
	}
	plan := classes.Plan(spec)
	return func(c director.EditContext) director.Edit {
		if c.Primary && len(c.Backend.Maps[Handlers]) == 0 {
			return nil // its names are the same in front
		}
		edit := func(dst []byte, class rewrite.Class, v []byte) ([]byte, error) {
			switch {
			case class != written:
				return c.Front(dst, kinds[class], v), nil
			case isImageID(v):
				return c.Front(dst, "image", v), nil
			default:
				return append(dst, v...), nil
			}
		}
		return func(dst, image []byte) ([]byte, error) { return plan.Apply(dst, image, edit) }
	}, nil
}

// written is the class of what a client has written.
const written rewrite.Class = 1

// imageSpec returns what a schema says of the message that names an image.
func imageSpec(s *codec.Schema) protoreflect.MessageDescriptor {
	spec := (&runtimeapi.ImageSpec{}).ProtoReflect().Descriptor()
	for _, md := range profile.MessagesOf(s.Methods()).All() {
		if md.FullName() == spec.FullName() {
			return md
		}
	}
	return spec
}

var sha256Prefix = []byte("sha256:")

// isImageID reports whether an image is called by its id: "sha256:…", as containerd has
// it, or 64 hexadecimal digits, as CRI-O has it.
func isImageID(v []byte) bool {
	if bytes.HasPrefix(v, sha256Prefix) {
		return true // perhaps cut short
	}
	return len(v) == 64 && len(bytes.Trim(v, "0123456789abcdef")) == 0
}
