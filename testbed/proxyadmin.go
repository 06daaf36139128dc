package testbed

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
)

// Metrics returns its metrics.
func (p *Proxy) Metrics(ctx context.Context) (Metrics, error) {
	admin := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", p.Admin())
	}}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://criproxy/metrics", nil)
	if err != nil {
		return nil, err
	}
	resp, err := admin.Do(req)
	if err != nil {
		return nil, fmt.Errorf("testbed: asking criproxy: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("testbed: asking criproxy for its metrics: %s: %w", resp.Status, err)
	}
	return parseMetrics(string(body)), nil
}
