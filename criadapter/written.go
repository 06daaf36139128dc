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

// asWritten returns the edit for the image of a container, for which a runtime returns an id or a
// name. An id gets the runtime's prefix, like the ids in the list of images. A name stays as it is,
// so that people find the name that they wrote in their pod: if that had a prefix, the note in the
// container's annotations has already put it back. The edit translates the other fields of the image
// as usual.
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
			return nil // the primary's names are the same in front
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

// written is the class of the fields that keep the name that the client wrote.
const written rewrite.Class = 1

// imageSpec returns the descriptor of ImageSpec in a schema, or the built-in one.
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

// isImageID reports whether v is the id of an image: "sha256:…" in containerd, 64 hexadecimal
// digits in CRI-O.
func isImageID(v []byte) bool {
	if bytes.HasPrefix(v, sha256Prefix) {
		return true // it may be cut short
	}
	return len(v) == 64 && len(bytes.Trim(v, "0123456789abcdef")) == 0
}
