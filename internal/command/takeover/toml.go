package takeover

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// tomlStatement is a key with its value, the header of a table, a comment or an empty line. It consists of whole lines
// of a file.
type tomlStatement struct {
	text        string
	line, lines int // the first, from 0, and how many
}

// tomlToken matches what determines the end of a statement: brackets and newlines, and also strings and comments, in
// which these do not count. A lone quote is a string without an end.
var tomlToken = regexp.MustCompile(`(?s)` +
	`"""(?:[^\\]|\\.)*?"{3,5}|'''.*?'{3,5}` + // with up to two quotes before its end
	`|"(?:[^"\\\n]|\\[^\n])*"|'[^'\n]*'` +
	`|#[^\n]*|[\[\]{}\n"']`)

// tomlStatements returns the statements of a file whose last line ends with a newline.
func tomlStatements(text string) ([]tomlStatement, error) {
	var all []tomlStatement
	begin, line, open := 0, 0, 0
	for _, at := range tomlToken.FindAllStringIndex(text, -1) {
		switch text[at[0]:at[1]] {
		case "[", "{":
			open++
		case "]", "}":
			open--
		case `"`, `'`:
			return nil, fmt.Errorf("line %d: a string has no closing quote; add it", 1+strings.Count(text[:at[0]], "\n"))
		case "\n":
			if open > 0 {
				continue
			}
			s := tomlStatement{text: text[begin:at[1]], line: line}
			s.lines = strings.Count(s.text, "\n")
			all = append(all, s)
			begin, line, open = at[1], line+s.lines, 0
		}
	}
	if begin < len(text) {
		return nil, fmt.Errorf("line %d: a bracket that opens here is not closed; close it", line+1)
	}
	return all, nil
}

// tomlStrings returns the strings in an array, with their quotes.
func tomlStrings(array string) ([]string, error) {
	var all []string
	for _, token := range tomlToken.FindAllString(array, -1) {
		switch {
		case token[0] != '"' && token[0] != '\'':
		case strings.Contains(token, "\n"):
			return nil, errors.New("a string spans several lines; write it on one line")
		default:
			all = append(all, token)
		}
	}
	return all, nil
}

var (
	tomlTable   = regexp.MustCompile(`^\s*\[`)
	tomlVersion = regexp.MustCompile(`^\s*version\s*=\s*(\d+)`)
	tomlImports = regexp.MustCompile(`^\s*["']?imports["']?\s*=`)
	tomlListen  = regexp.MustCompile(`^\s*listen\s*=\s*["']([^"']*)["']`)
	tomlAddress = regexp.MustCompile(`^\s*address\s*=\s*["']([^"']*)["']`)
)

// valueIn returns the value of a key in one of the tables, empty if there is none.
func valueIn(statements []tomlStatement, key *regexp.Regexp, tables ...string) string {
	in := false
	for _, s := range statements {
		if tomlTable.MatchString(s.text) {
			in = slices.ContainsFunc(tables, func(table string) bool { return strings.HasPrefix(strings.TrimSpace(s.text), table) })
		} else if m := key.FindStringSubmatch(s.text); in && m != nil {
			return m[1]
		}
	}
	return ""
}
