// Package markdown writes reports of programs into documents that people maintain.
package markdown

import (
	"fmt"
	"os"
	"strings"
)

// Between replaces the text between two marks of a file. The file must contain both.
func Between(path, begin, end, text string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(data), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return fmt.Errorf("%s lacks the line %q or %q, between which the text belongs", path, strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return os.WriteFile(path, []byte(before+begin+text+end+after), 0o644)
}

// Section replaces the section with the given title, or appends it to the file. The section names
// the command that made it.
func Section(path, title, command, text string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	begin := "## " + title + "\n"
	head, rest, _ := strings.Cut(string(data), begin)
	_, after, more := strings.Cut(rest, "\n## ")
	section := begin + "\n`" + command + "` made this.\n\n" + text
	if more {
		section += "\n## " + after
	}
	return os.WriteFile(path, []byte(strings.TrimRight(head, "\n")+"\n\n"+section), 0o644)
}
