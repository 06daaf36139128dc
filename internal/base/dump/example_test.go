package dump_test

import (
	"fmt"

	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/protobuf/proto"

	"github.com/criproxy/criproxy/internal/base/dump"
)

func Example() {
	md := (&testpb.SimpleRequest{}).ProtoReflect().Descriptor()
	src, err := proto.Marshal(&testpb.SimpleRequest{ResponseSize: 10, Payload: &testpb.Payload{Body: []byte("hello")}})
	if err != nil {
		fmt.Println(err)
	}
	fmt.Printf("%s\n", dump.Text{}.Append(nil, md, src))
	fmt.Printf("%s\n", dump.Text{MaxValue: 4}.Append(nil, nil, src))
	fmt.Printf("%s\n", dump.AppendJSON(nil, md, src))
	// Output:
	// response_size: 10 payload {body: "hello"}
	// 2: 10 3 {2: "hell"...(5 bytes)}
	// {"response_size":10,"payload":{"body":"aGVsbG8="}}
}
