package fakecri_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/fakecri"
	"github.com/criproxy/criproxy/internal/testing/bounded"
)

func TestServingEndsAtOnceWithCallsUnderWay(t *testing.T) {
	rt := fakecri.New(fakecri.Config{})
	path, stop := serve(t, rt)
	cc := connect(t, path)
	defer cc.Close() //nolint:errcheck // an error changes nothing
	ctx := bounded.Context(t)
	stream, err := runtimeapi.NewRuntimeServiceClient(cc).GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	require.NoError(t, err)
	require.NoError(t, rt.WaitSubscribers(ctx, 1))
	require.NoError(t, stop())
	assert.NoError(t, rt.WaitSubscribers(ctx, 0), "the subscription has ended too")
	_, err = stream.Recv()
	assertCode(t, codes.Unavailable, err)
}

func TestARestartedRuntimeKeepsItsPods(t *testing.T) {
	rt := fakecri.New(fakecri.Config{})
	for i := range 2 {
		path, stop := serve(t, rt)
		cc := connect(t, path)
		pods, err := runtimeapi.NewRuntimeServiceClient(cc).ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
		require.NoError(t, err)
		assert.Len(t, pods.GetItems(), i)
		rt.Fill(1)
		require.NoError(t, cc.Close())
		require.NoError(t, stop())
	}
}

func TestServeReplacesAnAbandonedSocket(t *testing.T) {
	path := filepath.Join(dir(t), "cri.sock")
	l, err := fakecri.Listen(path)
	require.NoError(t, err)
	_, err = fakecri.Listen(path)
	require.ErrorContains(t, err, "a process already listens on")

	l.(interface{ SetUnlinkOnClose(bool) }).SetUnlinkOnClose(false) // as if it was killed
	require.NoError(t, l.Close())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	assert.NoError(t, fakecri.New(fakecri.Config{}).Serve(ctx, path))
	assert.NoFileExists(t, path)

	require.NoError(t, os.WriteFile(path, nil, 0o600))
	assert.ErrorContains(t, fakecri.New(fakecri.Config{}).Serve(t.Context(), path), "opening a socket", "Serve does not replace other files")
}

func TestOldAndNewPackagesAreServedAsConfigured(t *testing.T) {
	const v1, alpha = "/runtime.v1.RuntimeService/Version", "/runtime.v1alpha2.RuntimeService/Version"
	for _, test := range []struct {
		packages []string
		want     map[string]string // :: method that is served → API version
	}{
		{nil, map[string]string{v1: "v1"}},
		{[]string{fakecri.V1alpha2}, map[string]string{alpha: "v1alpha2"}},
		{[]string{fakecri.V1, fakecri.V1alpha2}, map[string]string{v1: "v1", alpha: "v1alpha2"}},
	} {
		c := start(t, fakecri.Config{Packages: test.packages})
		served := map[string]string{}
		for _, method := range []string{v1, alpha} {
			got := &runtimeapi.VersionResponse{}
			if err := c.invoke(method, `version: "0.1.0"`, got); err != nil {
				assertCode(t, codes.Unimplemented, err)
				continue
			}
			served[method] = got.GetRuntimeApiVersion()
		}
		assert.Equal(t, test.want, served)
	}
}

func TestV1alpha2LacksNewerMethods(t *testing.T) {
	c := start(t, fakecri.Config{Packages: []string{fakecri.V1alpha2}})
	for method, want := range map[string]codes.Code{
		"/runtime.v1alpha2.RuntimeService/RuntimeConfig":         codes.Unimplemented,
		"/runtime.v1alpha2.RuntimeService/ListMetricDescriptors": codes.Unimplemented,
		"/runtime.v1alpha2.RuntimeService/ListPodSandboxStats":   codes.OK,
		"/runtime.v1alpha2.ImageService/ListImages":              codes.OK,
	} {
		assertCode(t, want, c.invoke(method, "", &runtimeapi.VersionResponse{}))
	}
	assert.Len(t, c.rt.Calls("/runtime.v1alpha2.ImageService/ListImages"), 1)
}
