package proxy

import (
	"context"
	"io"
	"strings"
	"time"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/testbed/internal/metrics"
)

// AdminOf returns the default path of the admin socket of a criproxy that listens at socket, NAME.sock.
func AdminOf(socket string) string { return config.AdminBeside(socket) }

// askTimeout bounds each request on an admin socket.
const askTimeout = 10 * time.Second

// Ask returns criproxy's answer to a GET of path, such as "/status", on its admin socket.
func Ask(ctx context.Context, socket, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	response, err := admin.NewClient(socket).Get(ctx, path)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	return io.ReadAll(response.Body)
}

// AskJSON is Ask for an answer in JSON, which it decodes into answer.
func AskJSON(ctx context.Context, socket, path string, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	_, err := admin.NewClient(socket).Read(ctx, strings.TrimPrefix(path, "/"), answer)
	return err
}

// Metrics returns the metrics of the criproxy with an admin socket.
func Metrics(ctx context.Context, socket string) (metrics.Metrics, error) {
	text, err := Ask(ctx, socket, "/metrics")
	if err != nil {
		return nil, err
	}
	return metrics.Parse(string(text)), nil
}
