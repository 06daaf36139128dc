package cli

import (
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/profile"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

func TestDoctorHasTheSettingsThatItExaminesFromTheAdminSocket(t *testing.T) {
	dir := testkit.SocketDir(t)
	want := &config.Config{
		Listen: dir + "/l.sock", Admin: dir + "/a.sock", Tracing: "http://127.0.0.1:4317", IDs: config.NativeIDs, StateDir: dir + "/state", Hooks: dir + "/hooks",
		Profile: dir + "/csi.yaml", Proto: []string{"b.proto", "a.proto"}, ProtoPath: []string{dir},
		Listeners: []config.Listener{{Path: dir + "/read.sock"}},
		Rules:     &profile.Profile{Harmless: map[string][]string{"Volume": {"volume_id"}}},
		Backends:  []config.Backend{{Name: "beta.io", Address: dir + "/1.sock", Addresses: []string{dir + "/2.sock"}}, {Address: dir + "/0.sock"}},
	}
	l, err := net.Listen("unix", want.Admin)
	require.NoError(t, err)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "/settings", r.URL.Path)
		assert.NoError(t, json.NewEncoder(w).Encode(want.Settings()))
	})}
	go server.Serve(l)
	defer server.Close()
	f := &Flags{}
	assert.Equal(t, want, f.insteadOf(t.Context(), &config.Config{Admin: want.Admin}))
	none := filepath.Join(dir, "none.sock")
	assert.Equal(t, none, f.insteadOf(t.Context(), &config.Config{Admin: none}).Admin)
}

func TestDoctorNamesAWrongVariableOfOpenTelemetry(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "")
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "grpc://c:4317")
	var d Diagnosis
	d.configuration(&Flags{}, &config.Config{})
	var said []string
	for _, f := range d.Findings {
		said = append(said, f.Text)
	}
	assert.Contains(t, said, "invalid address of a collector in OTEL_EXPORTER_OTLP_ENDPOINT=grpc://c:4317, so no spans are sent")
}

// It warned of what kubelet makes of the names of backends that no kubelet knows.
func TestDoctorSaysNothingOfKubeletAboutAnotherAPI(t *testing.T) {
	backends := []config.Backend{{Address: "/run/a.sock"}, {Name: "two", Address: "/run/b.sock"}}
	var ofCRI, other Diagnosis
	ofCRI.configuration(&Flags{}, &config.Config{Backends: backends})
	other.configuration(&Flags{}, &config.Config{Backends: backends, Profile: "csi.yaml"})
	about := func(d Diagnosis) (all string) {
		for _, f := range d.Findings {
			all += f.Text + "\n"
		}
		return all
	}
	assert.Contains(t, about(ofCRI), "kubelet")
	assert.NotContains(t, about(other), "kubelet")
}
