package why_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/kubelet"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// diskPressure makes kubelet remove all images that no pod uses, every ten seconds.
const diskPressure = "evictionHard: {imagefs.available: '99.9%'}\nimageMinimumGCAge: 1s\n"

// On a node whose disk is nearly full, kubelet removes images that nobody uses. CRI-O refuses to remove one that a
// container uses that it does not show to kubelet: podman's containers are in the same storage.
func TestWhyNamesImagesThatStay(t *testing.T) {
	n := &node{began: time.Now(), registry: testbed.NewRegistry(t)}
	testbed.Require(t, build.Kubelet)
	crio := testbed.NewCRIO(t, n.registry, runtimes.CRIOConfig{Mirrors: map[string]string{registry: n.registry.Addr}})
	held := pulled(t, crio.Endpoint(), registry+"/testbed/app:2")
	require.NoError(t, crio.Terminate(t.Context()))
	file := filepath.Join(crio.Dir, "storage/overlay-containers/containers.json")
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
	text, err := json.Marshal([]map[string]any{{"id": strings.Repeat("ab", 32), "names": []string{"tools"}, "image": held, "created": time.Now()}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, text, 0o600))
	require.NoError(t, crio.Start(t.Context()))
	n.proxy = testbed.NewProxy(t, "flightRecorder: 67108864\nbackends:\n- address: "+crio.Socket()+"\n")
	n.kubelet = testbed.NewKubelet(t, kubelet.Config{Endpoint: n.proxy.Endpoint(), ExtraYAML: diskPressure})
	n.run(t, pod("web", "tick"))
	n.try(t, []fault{{name: "image-held", says: " be removed from primary: RemoveImage was tried ", run: func(t *testing.T) {
		n.await(t, 2*time.Minute, "RemoveImage")
		time.Sleep(40 * time.Second)
	}}})
}

// pulled pulls an image, and returns its id.
func pulled(t *testing.T, endpoint, image string) string {
	t.Helper()
	images, err := runtimes.Images(t.Context(), endpoint)
	require.NoError(t, err)
	defer images.Close(t.Context())
	_, err = images.PullImage(t.Context(), &runtimeapi.ImageSpec{Image: image}, nil, nil)
	require.NoError(t, err)
	is, err := images.ImageStatus(t.Context(), &runtimeapi.ImageSpec{Image: image}, false)
	require.NoError(t, err)
	return is.Image.Id
}
