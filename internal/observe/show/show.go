// Package show prints answers of a running criproxy's admin socket. Each function asks for one answer, and prints it on
// a [Screen] for people, or as JSON or YAML for programs.
package show

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/criproxy/criproxy/internal/observe/admin"
)

// The output formats. Text is for people, and Wide for people with wide screens.
const (
	Text = ""
	Wide = "wide"
	JSON = "json"
	YAML = "yaml"
)

// A Query names the admin socket to ask, or the nodes, and the format of the output.
type Query struct {
	Path   string
	Format string
	*Screen

	Nodes   []admin.Node  // for the functions that ask several nodes
	Timeout time.Duration // for the answer of each of them
	Waiting io.Writer     // gets a message if their answers take long; nil for none
}

// ask gets the answer called name, prints it, and returns it. For people it prints with print, for programs as the
// server wrote it.
func ask[T any](ctx context.Context, q Query, name string, print func(*Screen, *T)) (*T, error) {
	answer := new(T)
	raw, err := admin.NewClient(q.Path).Read(ctx, name, answer)
	switch {
	case err != nil:
		return nil, err
	case q.Format == JSON:
		_, err = q.Out.Write(raw)
	case q.Format == YAML:
		err = writeYAML(q.Out, raw)
	default:
		print(q.Screen, answer)
	}
	return answer, err
}

// Encode writes v for programs, as JSON or as YAML with the same keys.
func Encode(out io.Writer, format string, v any) error {
	raw, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	if format == YAML {
		return writeYAML(out, raw)
	}
	_, err = out.Write(append(raw, '\n'))
	return err
}

// Documents writes each line of JSON as a document of YAML.
type Documents struct{ Out io.Writer }

// Write accepts only whole lines.
func (d Documents) Write(b []byte) (int, error) {
	for line := range bytes.Lines(b) {
		if _, err := io.WriteString(d.Out, "---\n"); err != nil {
			return 0, err
		}
		if err := writeYAML(d.Out, line); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// writeYAML writes JSON as YAML, with the keys in the same order.
func writeYAML(out io.Writer, raw []byte) error {
	var doc yaml.Node
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		return err
	}
	unstyle(&doc)
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(&doc); err != nil {
		return err
	}
	_, err := out.Write(b.Bytes())
	return err
}

// unstyle removes the braces and quotes of JSON, which YAML does not need.
func unstyle(n *yaml.Node) {
	n.Style = 0
	for _, one := range n.Content {
		unstyle(one)
	}
}
