// Package docs has the documents that the command prints, because a node may not have the files.
package docs

import (
	_ "embed"
	"regexp"
	"strings"
)

//go:embed runbook.md
var runbook string

var (
	heading = regexp.MustCompile(`(?m)^(#{2,4}) (.+)$`)
	comment = regexp.MustCompile(`(?s)<!--.*?-->\n?`)
)

// Runbook returns the section of runbook.md that an anchor names, as a link to GitHub does, and all anchors. The section
// is empty if there is none. Without an anchor it is the whole runbook.
func Runbook(anchor string) (section string, anchors []string) {
	text := comment.ReplaceAllString(runbook, "")
	heads := heading.FindAllStringSubmatchIndex(text, -1)
	for i, at := range heads {
		title := Anchor(text[at[4]:at[5]])
		anchors = append(anchors, title)
		if title != anchor {
			continue
		}
		end := len(text)
		for _, next := range heads[i+1:] {
			if next[3]-next[2] <= at[3]-at[2] { // as high as this one, or higher
				end = next[0]
				break
			}
		}
		section = strings.TrimSpace(text[at[0]:end]) + "\n"
	}
	if anchor == "" {
		section = text
	}
	return section, anchors
}

// Anchor returns the anchor of a heading.
func Anchor(title string) string {
	return regexp.MustCompile(`[^a-z0-9-]`).ReplaceAllString(strings.ReplaceAll(strings.ToLower(title), " ", "-"), "")
}
