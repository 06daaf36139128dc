package codec

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
)

// A Method describes one method of a service.
type Method struct {
	Name          string // as on the wire: "/runtime.v1.RuntimeService/Version"
	Input, Output protoreflect.MessageDescriptor
	ClientStreams bool
	ServerStreams bool

	file protoreflect.FileDescriptor // describes its service
}

// Unary reports whether the method has one request and one reply.
func (m *Method) Unary() bool { return !m.ClientStreams && !m.ServerStreams }

// A Schema holds the methods of some services, with the types of their messages. It is immutable
// and safe for concurrent use. The nil Schema has no methods.
type Schema struct {
	methods []*Method
	byName  map[string]*Method // :: "/package.Service/Method"
}

// NewSchema returns a schema of all services in files. If two files describe the same method, the
// schema has it from the earlier one.
func NewSchema(files ...protoreflect.FileDescriptor) *Schema {
	s := &Schema{byName: map[string]*Method{}}
	for _, file := range files {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				md := service.Methods().Get(j)
				m := &Method{
					Name:          fmt.Sprintf("/%s/%s", service.FullName(), md.Name()),
					Input:         md.Input(),
					Output:        md.Output(),
					ClientStreams: md.IsStreamingClient(),
					ServerStreams: md.IsStreamingServer(),
					file:          file,
				}
				s.add(m)
			}
		}
	}
	return s
}

// add adds a method, unless the schema has one of that name.
func (s *Schema) add(m *Method) {
	if s.byName[m.Name] == nil {
		s.byName[m.Name] = m
		s.methods = append(s.methods, m)
	}
}

// ParseSchema returns a schema of all services in a serialized
// FileDescriptorSet, as protoc writes it with --descriptor_set_out and
// --include_imports. A set may lack an import: the fields of messages in the missing file then
// have no names, only numbers, and no rule reaches them.
func ParseSchema(set []byte) (*Schema, error) {
	fds := &descriptorpb.FileDescriptorSet{}
	if err := proto.Unmarshal(set, fds); err != nil {
		return nil, fmt.Errorf("reading a FileDescriptorSet: %w", err)
	}
	return schemaOf(fds)
}

// ParseSchemaText is [ParseSchema] for a set in protobuf's text format, in which some projects
// publish theirs. It leaves out options that protobuf itself does not define.
func ParseSchemaText(set []byte) (*Schema, error) {
	fds := &descriptorpb.FileDescriptorSet{}
	if err := (prototext.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(set, fds); err != nil {
		return nil, fmt.Errorf("reading a FileDescriptorSet in text form: %w", err)
	}
	return schemaOf(fds)
}

func schemaOf(fds *descriptorpb.FileDescriptorSet) (*Schema, error) {
	registry, err := protodesc.FileOptions{AllowUnresolvable: true}.NewFiles(fds)
	if err != nil {
		return nil, fmt.Errorf("linking a FileDescriptorSet: %w", err)
	}
	var files []protoreflect.FileDescriptor
	for _, fd := range fds.GetFile() { // the set's order, not the registry's, which has none
		file, err := registry.FindFileByPath(fd.GetName())
		if err != nil {
			return nil, fmt.Errorf("linking a FileDescriptorSet: %w", err)
		}
		files = append(files, file)
	}
	return NewSchema(files...), nil
}

// LinkedIn returns a schema of every service whose generated code is linked
// into this program.
func LinkedIn() *Schema {
	var files []protoreflect.FileDescriptor
	protoregistry.GlobalFiles.RangeFiles(func(fd protoreflect.FileDescriptor) bool {
		files = append(files, fd)
		return true
	})
	// The registry has no order of its own.
	slices.SortFunc(files, func(a, b protoreflect.FileDescriptor) int { return strings.Compare(a.Path(), b.Path()) })
	return NewSchema(files...)
}

// Alias returns a schema with the methods of s, and with each service of package pkg once more in
// the package as: for an older version of an API, whose messages are the same.
func (s *Schema) Alias(pkg, as string) *Schema {
	all := s.Join(nil)
	for _, m := range s.Methods() {
		if rest, ok := strings.CutPrefix(m.Name, "/"+pkg+"."); ok {
			alias := *m
			alias.Name = "/" + as + "." + rest
			all.add(&alias)
		}
	}
	return all
}

// Join returns a schema with the methods of s and more. Of a method that both have, it has the
// one of s.
func (s *Schema) Join(more *Schema) *Schema {
	all := &Schema{byName: map[string]*Method{}}
	for _, m := range append(slices.Clone(s.Methods()), more.Methods()...) {
		all.add(m)
	}
	return all
}

// Method returns the method with this full name, or nil if the schema does not have it.
func (s *Schema) Method(name string) *Method {
	if s == nil {
		return nil
	}
	return s.byName[name]
}

// Methods returns all methods in the order of their files. The caller must not change the slice.
func (s *Schema) Methods() []*Method {
	if s == nil {
		return nil
	}
	return s.methods
}

// Descriptors returns the files that describe the methods, with all their imports, as a
// serialized FileDescriptorSet that [ParseSchema] reads.
func (s *Schema) Descriptors() []byte {
	set := &descriptorpb.FileDescriptorSet{}
	added := map[string]bool{}
	var add func(file protoreflect.FileDescriptor)
	add = func(file protoreflect.FileDescriptor) {
		if file == nil || file.IsPlaceholder() || added[file.Path()] {
			return
		}
		added[file.Path()] = true
		for i := range file.Imports().Len() {
			add(file.Imports().Get(i).FileDescriptor)
		}
		set.File = append(set.File, protodesc.ToFileDescriptorProto(file))
	}
	for _, m := range s.Methods() {
		add(m.file)
	}
	b, err := proto.Marshal(set)
	if err != nil { // cannot happen: all text in descriptors is UTF-8
		return nil
	}
	return b
}

// File returns the file that describes the method.
func (m *Method) File() protoreflect.FileDescriptor { return m.file }
