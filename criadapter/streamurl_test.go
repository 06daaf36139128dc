package criadapter_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/criadapter"
)

func TestOnlyStreamURLsWithoutAHostAreCompleted(t *testing.T) {
	for _, c := range []struct{ base, url, want string }{
		{"https://node:11250/", "http://127.0.0.1:35000/exec/abc", "http://127.0.0.1:35000/exec/abc"},
		{"https://node:11250/", "http://[::1]:35000/exec/abc?x=%2f", "http://[::1]:35000/exec/abc?x=%2f"},
		{"https://node:11250/", "/cri/exec/abc?x=1", "https://node:11250/cri/exec/abc?x=1"},
		{"https://node:11250", "http:///cri/exec/abc", "https://node:11250/cri/exec/abc"},
		{"https://node:11250/", "//[::]:35000/exec/abc", "https://node:35000/exec/abc"},
		{"https://node:11250/", "http://0.0.0.0:35000/exec/abc", "http://node:35000/exec/abc"},
		{"https://node:11250/", "//runtime:35000/exec/abc", "https://runtime:35000/exec/abc"},
		{"https://node:11250/", "", ""},
		{"https://node:11250/", "http://%zz", "http://%zz"},
		{"https://[fd00::1]:11250/", "http://0.0.0.0:35000/exec/abc", "http://[fd00::1]:35000/exec/abc"},
	} {
		r := newRelay(t, criadapter.Options{StreamURL: c.base}, "runtime.v1", "runtime.v1")
		var err error
		r.reply, err = proto.Marshal(&runtimeapi.ExecResponse{Url: c.url})
		require.NoError(t, err)
		for method, request := range map[string]proto.Message{
			runtimeapi.RuntimeService_Exec_FullMethodName:        &runtimeapi.ExecRequest{ContainerId: "beta.io__7f"},
			runtimeapi.RuntimeService_Attach_FullMethodName:      &runtimeapi.AttachRequest{ContainerId: "7f"},
			runtimeapi.RuntimeService_PortForward_FullMethodName: &runtimeapi.PortForwardRequest{PodSandboxId: "beta.io__7f"},
		} {
			var exec runtimeapi.ExecResponse
			require.NoError(t, proto.Unmarshal(r.passes(t, method, request, request.ProtoReflect().New().Interface()), &exec))
			assert.Equal(t, c.want, exec.GetUrl(), c.url)
		}
	}
	for _, bad := range []string{"node:11250", "ftp://node/", "/x", "http://"} {
		_, err := criadapter.Config(criadapter.Options{StreamURL: bad})
		assert.ErrorContains(t, err, "want http://HOST:PORT/, the address of the runtime's streaming server", bad)
	}
}
