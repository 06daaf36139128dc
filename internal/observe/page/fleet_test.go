package page

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

func TestTheFleetPageLeadsToTheNodes(t *testing.T) {
	dir := testkit.SocketDir(t)
	p := begin(t, dir+"/a.sock", 7, nil)
	defer p.stop()
	l, err := Listen("127.0.0.1:0")
	require.NoError(t, err)
	gone := time.Now().Add(-time.Minute)
	f := NewFleet(FleetConfig{
		Page: func() Config {
			return Config{Open: func(h *capture.FileHeader) (*calls.Printer, *calls.Assembler, error) {
				return &calls.Printer{}, calls.NewAssembler(nil, nil), nil
			}}
		},
		List: func(context.Context) ([]admin.Node, error) {
			return []admin.Node{{Name: dir + "/a.sock", Address: dir + "/a.sock"}, {Name: "b", Address: "/none"}, {Name: "c", Err: errors.New("its pod does not run")}}, nil
		},
		Ask: func(_ context.Context, n admin.Node) (*admin.Report, time.Duration, error) {
			if n.Name == "b" {
				return nil, 0, errors.New("connection refused")
			}
			return &admin.Report{Version: "1", Config: admin.Config{ID: "41c20000"}, Backends: []admin.Backend{{Name: "kata.io", State: "gone", Since: gone.Add(time.Hour),
				Outages: []admin.Outage{{State: "gone", From: gone.Add(time.Hour)}, {State: "slow", From: gone.Add(-50 * time.Hour), To: gone.Add(-49 * time.Hour)}}}}}, time.Hour, nil
		},
		Timeout: testkit.Patience,
	}, l)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- f.Serve(ctx, l) }()
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	browser := &http.Client{Jar: jar, Timeout: testkit.Patience, Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(path string) (int, string) {
		t.Helper()
		r, err := browser.Get("http://" + l.Addr().String() + path)
		require.NoError(t, err)
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		return r.StatusCode, string(text)
	}
	status, _ := get("/nodes")
	assert.Equal(t, http.StatusForbidden, status, "without the link")
	r, err := browser.Get(f.URL())
	require.NoError(t, err)
	r.Body.Close()
	var nodes string
	testkit.Eventually(t, "all were asked", func() bool {
		_, nodes = get("/nodes?after=-1")
		return strings.Count(nodes, `"asked":true`) == 3
	})
	assert.Contains(t, nodes, `"config":{"id":"41c20000"`)
	assert.Contains(t, nodes, `"error":"connection refused"`)
	assert.Contains(t, nodes, `"error":"its pod does not run"`)
	assert.Contains(t, nodes, `"clockOff":3600000`)
	assert.Equal(t, 1, strings.Count(nodes, `"from":`), "only the last day")
	status, html := get("/node/" + url.PathEscape(dir+"/a.sock") + "/")
	assert.Equal(t, http.StatusOK, status)
	assert.Contains(t, html, "EventSource", "the page of a node")
	status, said := get("/node/nobody/")
	assert.Equal(t, http.StatusNotFound, status, said)
	stream, err := browser.Get("http://" + l.Addr().String() + "/node/" + url.PathEscape(dir+"/a.sock") + "/stream")
	require.NoError(t, err)
	defer stream.Body.Close()
	lines := bufio.NewScanner(stream.Body)
	for lines.Scan() && !strings.Contains(lines.Text(), `"pid":7`) {
	}
	assert.NoError(t, lines.Err(), "its process answers there")
	cancel()
	require.NoError(t, <-served)
}
