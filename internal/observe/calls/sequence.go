package calls

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
)

// Sequence writes calls as a sequence diagram in Mermaid's syntax.
func Sequence(out io.Writer, calls []*Call) error {
	type arrow struct {
		when time.Duration
		text string
	}
	var arrows []arrow
	var names []string
	var lanes []string // kind and name of each participant: a client may have the name of a backend
	name := func(lane, s string) string {
		if !slices.Contains(lanes, lane+s) {
			lanes, names = append(lanes, lane+s), append(names, s)
		}
		return participant(slices.Index(lanes, lane+s))
	}
	const proxy = "criproxy"
	for _, c := range calls {
		for _, l := range c.Legs {
			var a, b string
			if l.Number == 0 {
				a, b = name("client", c.From()), name("", proxy)
			} else {
				a, b = name("", proxy), name("backend", l.Backend)
			}
			what := mermaidText(strings.TrimSpace(ShortMethod(l.Method) + " " + c.About.String()))
			arrows = append(arrows, arrow{l.mono, fmt.Sprintf("%s->>%s: %s", a, b, what)})
			if l.Replies.Count > 1 || c.stream {
				for i, m := range l.Replies.Kept {
					arrows = append(arrows, arrow{m.Mono, fmt.Sprintf("%s-->>%s: message %d", b, a, i+1)})
				}
			}
			if !l.Ended {
				continue
			}
			end, text := "-->>", l.Code.String()+" "+strings.TrimSpace(took(l.Took))
			if l.Failed() {
				end = "--x"
			}
			if l.Code != codes.OK {
				text = mermaidText(strings.TrimSpace(l.Code.String() + " " + l.Message))
			}
			arrows = append(arrows, arrow{l.mono + l.Took, fmt.Sprintf("%s%s%s: %s", b, end, a, text)})
		}
	}
	slices.SortStableFunc(arrows, func(a, b arrow) int { return int(a.when - b.when) })
	var b strings.Builder
	b.WriteString("sequenceDiagram\n")
	for i, s := range names {
		fmt.Fprintf(&b, "    participant %s as %s\n", participant(i), mermaidText(s))
	}
	for _, a := range arrows {
		fmt.Fprintf(&b, "    %s\n", a.text)
	}
	_, err := io.WriteString(out, b.String())
	return err
}

func participant(i int) string { return fmt.Sprintf("p%d", i) }

// mermaidText removes characters that have a meaning in Mermaid, and cuts long text.
func mermaidText(s string) string {
	return Cut(strings.NewReplacer(";", ",", "#", "", "%", "").Replace(s), maxMsg)
}
