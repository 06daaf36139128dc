package codec_test

import (
	"fmt"

	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/criproxy/criproxy/codec"
)

func Example() {
	frame, err := codec.FrameOf(&testpb.SimpleRequest{ResponseSize: 10, Payload: &testpb.Payload{Body: []byte("hello")}})
	if err != nil {
		fmt.Println(err)
	}
	schema := codec.NewSchema(testpb.File_grpc_testing_test_proto)
	method := schema.Method("/grpc.testing.TestService/UnaryCall")
	fmt.Printf("%d bytes: %s\n", frame.Len(), codec.Text{}.Append(nil, method.Input, frame.Bytes()))
	fmt.Printf("by number: %s\n", codec.Text{MaxValue: 4}.Append(nil, nil, frame.Bytes()))
	// Output:
	// 11 bytes: response_size: 10 payload {body: "hello"}
	// by number: 2: 10 3 {2: "hell"...(5 bytes)}
}
