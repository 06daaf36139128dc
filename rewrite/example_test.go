package rewrite_test

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/sourcecontextpb"
	"google.golang.org/protobuf/types/known/typepb"

	"github.com/criproxy/criproxy/rewrite"
)

// Example puts a prefix before every name in a message, however deep.
func Example() {
	in, err := proto.Marshal(&typepb.Type{
		Name:          "Pod",
		Fields:        []*typepb.Field{{Name: "id", JsonName: "id"}, {Name: "labels"}},
		SourceContext: &sourcecontextpb.SourceContext{FileName: "pod.proto"},
	})
	check(err)
	md := (&typepb.Type{}).ProtoReflect().Descriptor()
	classes, err := rewrite.Classify([]protoreflect.MessageDescriptor{md}, []rewrite.Rule{{Field: "*.name", Class: 1}})
	check(err)
	out, err := classes.Plan(md).Apply(nil, in, func(dst []byte, _ rewrite.Class, name []byte) ([]byte, error) {
		return append(append(dst, "beta.io__"...), name...), nil
	})
	check(err)
	var got typepb.Type
	check(proto.Unmarshal(out, &got))
	fmt.Println(got.GetName(), got.GetFields()[0].GetName(), got.GetFields()[1].GetName(), got.GetSourceContext().GetFileName())
	// Output: beta.io__Pod beta.io__id beta.io__labels pod.proto
}

func ExamplePath() {
	md := (&typepb.Type{}).ProtoReflect().Descriptor()
	path, err := rewrite.ParsePath(md, "source_context.file_name")
	check(err)
	in, err := proto.Marshal(&typepb.Type{SourceContext: &sourcecontextpb.SourceContext{FileName: "pod.proto"}})
	check(err)
	value, found, err := path.Lookup(in)
	check(err)
	fmt.Printf("%s %t\n", value, found)
	_, err = rewrite.ParsePath(md, "source_context.filename")
	fmt.Println(err)
	// Output:
	// pod.proto true
	// path source_context.filename: google.protobuf.SourceContext has no field "filename" (did you mean "file_name"?)
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
