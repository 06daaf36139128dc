package config

import (
	"fmt"
	"os"
	"strings"
)

// The variables of OpenTelemetry for spans have precedence over those for all signals:
// https://opentelemetry.io/docs/specs/otel/protocol/exporter/
const (
	otelVariable       = "OTEL_EXPORTER_OTLP_"
	otelTracesVariable = "OTEL_EXPORTER_OTLP_TRACES_"
)

// Collector returns the URL of the collector for spans: that of the setting tracing, or else of the environment as
// OpenTelemetry specifies it. It is empty if there is no collector. warnings say what in the environment is wrong, or has
// consequences that are easy to miss.
func (c *Config) Collector() (url string, warnings []string) {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") {
		return "", nil
	}
	if c.Tracing != "" {
		return c.Tracing, nil
	}
	endpoint, name := otel("ENDPOINT")
	if endpoint == "" {
		return "", nil
	}
	given := name + "=" + endpoint
	if !strings.Contains(endpoint, "://") { // as for grpc.Dial
		insecure, by := otel("INSECURE")
		if strings.EqualFold(insecure, "true") {
			url = "http://" + endpoint
		} else {
			url = "https://" + endpoint
			warnings = append(warnings, fmt.Sprintf("%s has no scheme, so spans are sent with TLS, as OpenTelemetry specifies; for a collector without TLS write %s=http://%s", given, name, endpoint))
		}
		if by != "" && url[:5] == "https" && !strings.EqualFold(insecure, "false") {
			warnings = append(warnings, fmt.Sprintf("%s=%s counts as false; want true or false", by, insecure))
		}
	} else {
		url = endpoint
	}
	if !isHTTP(url) {
		return "", []string{fmt.Sprintf("invalid address of a collector in %s, so no spans are sent; want http://HOST:PORT or https://HOST:PORT, where a collector accepts OTLP over gRPC", given)}
	}
	if protocol, by := otel("PROTOCOL"); protocol != "" && protocol != "grpc" {
		warnings = append(warnings, fmt.Sprintf("%s=%s is ignored: criproxy sends spans over gRPC; give the port at which %s accepts that, by default 4317", by, protocol, endpoint))
	}
	return url, warnings
}

// otel returns the value of a variable of OpenTelemetry for spans, and the whole name of that variable. An empty one
// counts as not set.
func otel(end string) (value, name string) {
	for _, begin := range []string{otelTracesVariable, otelVariable} {
		if v := strings.TrimSpace(os.Getenv(begin + end)); v != "" {
			return v, begin + end
		}
	}
	return "", ""
}
