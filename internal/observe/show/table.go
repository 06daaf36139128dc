package show

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/criproxy/criproxy/internal/observe/calls"
)

// A Table has rows of text below titles.
type Table struct {
	head []string
	rows [][]string
}

// Row adds a row, of pairs of title and text. All rows have the same titles, which may be empty.
func (t *Table) Row(pairs ...string) {
	var head, row []string
	for pair := range slices.Chunk(pairs, 2) {
		head, row = append(head, pair[0]), append(row, calls.Sanitize(pair[1]))
	}
	t.head, t.rows = head, append(t.rows, row)
}

// gap is what stands between columns.
const gap = 2

// Table prints a table, in which states have their colours. Columns that the screen has no room for stand below their row.
func (s *Screen) Table(t *Table) {
	widths := make([]int, len(t.head))
	for _, row := range append([][]string{t.head}, t.rows...) {
		for i, text := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(text))
		}
	}
	fit := len(t.head)
	for fit > 1 && s.Width > 0 && total(widths[:fit]) > s.Width {
		fit--
	}
	if strings.Join(t.head, "") != "" {
		s.row(t.head[:fit], widths, func(int) Colour { return Bold })
	}
	for _, row := range t.rows {
		s.row(row[:fit], widths, func(i int) Colour {
			if t.head[i] == "STATE" {
				return StateColour(row[i])
			}
			return Plain
		})
		var rest []string
		for i, text := range row[fit:] {
			if text != "" && text != "-" {
				rest = append(rest, strings.TrimSpace(strings.ToLower(t.head[fit+i])+" "+text))
			}
		}
		if len(rest) > 0 {
			s.Paint(Dim, 4, "%s", strings.Join(rest, ", "))
		}
	}
}

// withoutDashes removes the columns that have nothing but dashes: an API other than CRI has no pods.
func (t *Table) withoutDashes() *Table {
	for i := len(t.head) - 1; i > 0; i-- {
		if slices.ContainsFunc(t.rows, func(row []string) bool { return row[i] != "-" }) {
			continue
		}
		t.head = slices.Delete(t.head, i, i+1)
		for n := range t.rows {
			t.rows[n] = slices.Delete(t.rows[n], i, i+1)
		}
	}
	return t
}

func total(widths []int) int {
	n := -gap
	for _, w := range widths {
		n += w + gap
	}
	return n
}

// row prints texts, each as wide as its column except the last.
func (s *Screen) row(texts []string, widths []int, colour func(i int) Colour) {
	last := len(texts) - 1
	for last > 0 && texts[last] == "" {
		last--
	}
	var b strings.Builder
	for i, text := range texts[:last+1] {
		b.WriteString(s.coloured(colour(i), text))
		if i < last {
			b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text)+gap))
		}
	}
	s.write(b.String() + "\n")
}
