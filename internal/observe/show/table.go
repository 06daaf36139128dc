package show

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/criproxy/criproxy/internal/observe/calls"
)

// A Cell is a cell of a table.
type Cell struct {
	Text   string
	Colour Colour
}

// Cells are cells without a colour.
func Cells(texts ...string) []Cell {
	var all []Cell
	for _, text := range texts {
		all = append(all, Cell{Text: text})
	}
	return all
}

// columns are the columns of a table: head and rows for [Screen.Table].
type columns struct {
	head []string
	rows [][]Cell
}

// row adds a row, of pairs of title and text. A text below the title STATE has the colour of the state.
func (c *columns) row(pairs ...string) {
	c.head, c.rows = nil, append(c.rows, nil)
	for i := 0; i < len(pairs); i += 2 {
		cell := Cell{Text: pairs[i+1]}
		if pairs[i] == "STATE" {
			cell.Colour = StateColour(cell.Text)
		}
		c.head, c.rows[len(c.rows)-1] = append(c.head, pairs[i]), append(c.rows[len(c.rows)-1], cell)
	}
}

// gap is what stands between columns.
const gap = 2

// Table prints rows below a head. Columns that the screen has no room for stand below their row.
func (s *Screen) Table(head []string, rows [][]Cell) {
	widths := make([]int, len(head))
	for i, title := range head {
		widths[i] = len(title)
	}
	for _, row := range rows {
		for i := range row {
			row[i].Text = calls.Sanitize(row[i].Text)
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i].Text))
		}
	}
	fit := len(head)
	for fit > 1 && s.Width > 0 && total(widths[:fit]) > s.Width {
		fit--
	}
	if strings.Join(head, "") != "" {
		s.row(Bold, Cells(head[:fit]...), widths)
	}
	for _, row := range rows {
		s.row(Plain, row[:fit], widths)
		var rest []string
		for i, cell := range row[fit:] {
			if cell.Text != "" && cell.Text != "-" {
				rest = append(rest, strings.TrimSpace(strings.ToLower(head[fit+i])+" "+cell.Text))
			}
		}
		if len(rest) > 0 {
			s.Paint(Dim, 4, "%s", strings.Join(rest, ", "))
		}
	}
}

// known returns a table without the columns that have nothing but dashes: an API other than CRI has no pods.
func known(head []string, rows [][]Cell) ([]string, [][]Cell) {
	for i := len(head) - 1; i > 0; i-- {
		if slices.ContainsFunc(rows, func(row []Cell) bool { return row[i].Text != "-" }) {
			continue
		}
		head = slices.Delete(head, i, i+1)
		for n := range rows {
			rows[n] = slices.Delete(rows[n], i, i+1)
		}
	}
	return head, rows
}

// Rows is Table without a head.
func (s *Screen) Rows(rows [][]Cell) {
	if len(rows) > 0 {
		s.Table(make([]string, len(rows[0])), rows)
	}
}

func total(widths []int) int {
	n := -gap
	for _, w := range widths {
		n += w + gap
	}
	return n
}

func (s *Screen) row(c Colour, cells []Cell, widths []int) {
	last := len(cells) - 1
	for last > 0 && cells[last].Text == "" {
		last--
	}
	var b strings.Builder
	for i, cell := range cells[:last+1] {
		if cell.Colour != Plain {
			c = cell.Colour
		}
		b.WriteString(s.coloured(c, cell.Text))
		if i < last {
			b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell.Text)+gap))
		}
		if cell.Colour != Plain {
			c = Plain
		}
	}
	s.write(b.String() + "\n")
}
