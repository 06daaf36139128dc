// Package show prints what a running criproxy answers at its admin socket.
package show

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/criproxy/criproxy/internal/admin"
	"github.com/criproxy/criproxy/internal/inspect"
)

// show asks the criproxy whose admin socket is at path for the answer called name, and writes it
// to out: with print for people, or unchanged as JSON.
func show[T any](ctx context.Context, path, name string, asJSON bool, out io.Writer, print func(io.Writer, *T)) error {
	response, err := admin.NewClient(path).Get(ctx, "/"+name)
	if err != nil {
		return err
	}
	defer response.Body.Close() // it was only read
	if asJSON {
		_, err := io.Copy(out, response.Body)
		return err
	}
	var answer T
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return fmt.Errorf("reading the answer of criproxy at %s: %w", path, err)
	}
	print(inspect.Terminal{Writer: out}, &answer)
	return nil
}
