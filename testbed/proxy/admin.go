package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/criproxy/criproxy/testbed/internal/metrics"
)

// AdminOf returns the default path of the admin socket of a criproxy that listens at socket, NAME.sock.
func AdminOf(socket string) string { return strings.TrimSuffix(socket, ".sock") + ".admin.sock" }

// Ask returns criproxy's answer to a GET of path, such as "/status", on its admin socket. Any status other than 200 is
// an error.
func Ask(ctx context.Context, admin, path string) ([]byte, error) {
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", admin)
	}}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://criproxy"+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("testbed: asking criproxy for %s: %w", path, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("testbed: asking criproxy for %s: %w", path, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("testbed: asking criproxy for %s: %s: %s", path, resp.Status, body)
	}
	return body, nil
}

// AskJSON is Ask for an answer in JSON, which it decodes into answer.
func AskJSON(ctx context.Context, admin, path string, answer any) error {
	body, err := Ask(ctx, admin, path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, answer); err != nil {
		return fmt.Errorf("testbed: reading criproxy's %s: %w", path, err)
	}
	return nil
}

// Metrics returns the metrics of the criproxy with an admin socket.
func Metrics(ctx context.Context, admin string) (metrics.Metrics, error) {
	text, err := Ask(ctx, admin, "/metrics")
	if err != nil {
		return nil, err
	}
	return metrics.Parse(string(text)), nil
}
