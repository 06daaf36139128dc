package cli

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/criproxy/criproxy/internal/config"
)

func TestDoctorNamesAWrongVariableOfOpenTelemetry(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "")
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "grpc://c:4317")
	var d Diagnosis
	d.configuration(&Flags{}, &config.Config{})
	var said []string
	for _, f := range d.Findings {
		said = append(said, f.Text)
	}
	assert.Contains(t, said, "OTEL_EXPORTER_OTLP_ENDPOINT=grpc://c:4317 is no address of a collector, so no spans are sent")
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
