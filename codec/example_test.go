package codec_test

import (
	"fmt"

	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/criproxy/criproxy/codec"
)

// A schema says what a frame is; decoding it is the exception.
func Example() {
	frame, err := codec.FrameOf(&testpb.SimpleRequest{ResponseSize: 10, Payload: &testpb.Payload{Body: []byte("hello")}})
	if err != nil {
		fmt.Println(err)
	}
	schema := codec.NewSchema(testpb.File_grpc_testing_test_proto)
	method := schema.Method("/grpc.testing.TestService/UnaryCall")
	fmt.Printf("%s: %d bytes\n", method.Input.FullName(), frame.Len())

	var request testpb.SimpleRequest
	if err := codec.Decode(&request, frame); err != nil { // takes ownership of the frame
		fmt.Println(err)
	}
	fmt.Println(request.GetResponseSize(), string(request.GetPayload().GetBody()))
	// Output:
	// grpc.testing.SimpleRequest: 11 bytes
	// 10 hello
}
