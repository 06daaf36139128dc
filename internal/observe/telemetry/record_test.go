package telemetry

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/internal/config"
)

func TestAnExecProbeIsNotNotable(t *testing.T) {
	d, err := criadapter.Config(criadapter.Options{})
	require.NoError(t, err)
	r, err := NewRecording(&config.Config{}, d, nil)
	require.NoError(t, err)
	for method, want := range map[string]bool{
		"/runtime.v1.RuntimeService/RunPodSandbox": true, "/runtime.v1.RuntimeService/Exec": true, "/runtime.v1.ImageService/PullImage": true,
		"/runtime.v1.RuntimeService/ExecSync": false, "/runtime.v1alpha2.RuntimeService/ExecSync": false, "/runtime.v1.RuntimeService/ListContainers": false,
	} {
		assert.Equal(t, want, r.notable(method), method)
	}
}
