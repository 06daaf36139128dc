// Package show prints answers of a running criproxy's admin socket. Each function asks one criproxy for one answer, or
// several for theirs, and prints it on a [Screen] for people, or as JSON or YAML for programs.
package show

import (
	"bytes"
	"cmp"
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

// A Query names the admin socket to ask, or several nodes, and the format of the output.
type Query struct {
	Path   string
	Format string
	*Screen

	Nodes   []admin.Node  // to ask in place of Path; the output then says what is of which
	Timeout time.Duration // for the answer of each of them
	Waiting io.Writer     // gets a message if their answers take long; nil for none
}

// ask gets the answers called name, and shows them: to people the one with print, or those of several nodes with each.
func ask[T any](ctx context.Context, q Query, name string, print func(*Screen, *T), each func([]Answer[T])) ([]Answer[T], error) {
	all := read[T](ctx, q, name)
	var err error
	switch {
	case !q.People():
		err = EncodeAll(q, all)
	case q.Nodes != nil:
		each(all)
	case all[0].Value != nil:
		print(q.Screen, all[0].Value)
	}
	return all, cmp.Or(err, Finish(q, all))
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
