package config

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// OTEL_EXPORTER_OTLP_ENDPOINT=localhost:4317 sent nothing, 127.0.0.1:5312 sent spans to another port, and no message named
// the variable. See issue 40.
func TestTheCollectorIsThatOfOpenTelemetrysVariables(t *testing.T) {
	const all, traces = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	for _, c := range []struct {
		env, want, warning string
	}{
		{"", "", ""},
		{all + "=http://localhost:4317", "http://localhost:4317", ""},
		{all + "=https://c:4317 " + traces + "=http://t:1", "http://t:1", ""},
		{all + "=https://c:4317 " + traces + "=", "https://c:4317", ""},
		{all + "=localhost:4317", "https://localhost:4317", all + "=localhost:4317 has no scheme"},
		{all + "=127.0.0.1:5312", "https://127.0.0.1:5312", all + "=127.0.0.1:5312 has no scheme"},
		{traces + "=[::1]:5312 OTEL_EXPORTER_OTLP_INSECURE=true", "http://[::1]:5312", ""},
		{all + "=c:1 OTEL_EXPORTER_OTLP_INSECURE=true OTEL_EXPORTER_OTLP_TRACES_INSECURE=False", "https://c:1", "has no scheme"},
		{all + "=c:1 OTEL_EXPORTER_OTLP_INSECURE=1", "https://c:1", "OTEL_EXPORTER_OTLP_INSECURE=1 counts as false"},
		{all + "=grpc://c:1", "", "invalid address of a collector in " + all + "=grpc://c:1"},
		{all + "=http://", "", "invalid address of a collector in " + all + "=http://"},
		{all + "=/run/c.sock", "", "invalid address of a collector in " + all + "=/run/c.sock"},
		{all + "=http://c:4318 OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", "http://c:4318", "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf is ignored"},
		{all + "=c:1 OTEL_SDK_DISABLED=True", "", ""},
	} {
		t.Run(c.env, func(t *testing.T) {
			for _, name := range []string{all, traces, "OTEL_EXPORTER_OTLP_INSECURE", "OTEL_EXPORTER_OTLP_TRACES_INSECURE", "OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_SDK_DISABLED"} {
				t.Setenv(name, "")
			}
			for _, one := range strings.Fields(c.env) {
				name, value, _ := strings.Cut(one, "=")
				t.Setenv(name, value)
			}
			cfg := &Config{Backends: []Backend{{}}}
			url, warnings := cfg.Collector()
			assert.Equal(t, c.want, url)
			assert.Equal(t, warnings, cfg.Warnings(), "the log, check and doctor show them")
			if c.warning == "" {
				assert.Empty(t, warnings)
			} else {
				assert.Contains(t, strings.Join(warnings, "\n"), c.warning)
			}
			cfg.Tracing = "http://set:4317"
			_, warnings = cfg.Collector()
			assert.Empty(t, warnings, "the setting takes precedence")
		})
	}
}
