package muxtest

import (
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/rewrite"
)

// UpperCase has the conversion of the profile of [TwoVersions]: in version 0 of the library titles were in upper case.
var UpperCase = map[string]director.Conversion{"upper": {
	Fields: []string{"Book.title"},
	Up: func(dst []byte, _ rewrite.Class, v []byte) ([]byte, error) {
		return append(dst, strings.ToLower(string(v))...), nil
	},
	Down: func(dst []byte, _ rewrite.Class, v []byte) ([]byte, error) {
		return append(dst, strings.ToUpper(string(v))...), nil
	},
}}

// TwoVersions returns a profile of the library that has version 0 as well.
func TwoVersions(t testing.TB) *director.Profile {
	return LibraryProfile(t, "  - package: library.v1\n", "  - package: library.v1\n  - {package: library.v0, convert: [upper]}\nprobe: Library/Version\n")
}

// Speaking is a server that has only some versions. It counts its calls,
// and answers with the title that arrived.
func Speaking(versions string, asked *atomic.Int32) Handler {
	return func(method string, stream grpc.ServerStream) error {
		version := strings.Split(method, ".")[1]
		request := &codec.Frame{}
		if err := stream.RecvMsg(request); err != nil {
			return err
		}
		if !strings.Contains(versions, version) {
			return status.Errorf(codes.Unimplemented, "unknown service %s.Library", "library."+version)
		}
		switch filepath.Base(method) {
		case "Version":
			asked.Add(1)
			return stream.SendMsg(&codec.Frame{})
		case "Put":
			stream.SetTrailer(metadata.Pairs("x-got", Text("PutRequest", request), "x-version", version))
			return stream.SendMsg(Bytes("Book", map[string]string{"v1": `id: "7" title: "answer"`, "v0": `id: "7" title: "ANSWER"`}[version]))
		case "Stream":
			return stream.SendMsg(Bytes("ListResponse", map[string]string{"v1": `books {id: "7" title: "page"}`, "v0": `books {id: "7" title: "PAGE"}`}[version]))
		}
		return status.Errorf(codes.Unimplemented, "unknown method %s", method)
	}
}
