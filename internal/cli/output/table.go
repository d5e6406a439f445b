package output

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// A Cell is one field of a table, with an optional colour.
type Cell struct {
	Text  string
	Color Color
}

// WriteTable writes rows below a header, in columns that never wrap. paint colours text that is already safe.
func WriteTable(w io.Writer, paint func(Color, string) string, header []string, rows [][]Cell) {
	all := [][]Cell{Row(header...)}
	all = append(all, rows...)
	width := make([]int, len(header))
	for _, row := range all {
		for i := range row {
			row[i].Text = Escape(row[i].Text)
			width[i] = max(width[i], utf8.RuneCountInString(row[i].Text))
		}
	}
	for _, row := range all {
		var line strings.Builder
		for i, c := range row {
			line.WriteString(paint(c.Color, c.Text))
			if i < len(row)-1 {
				line.WriteString(strings.Repeat(" ", width[i]-utf8.RuneCountInString(c.Text)+3))
			}
		}
		fmt.Fprintln(w, line.String())
	}
}

// Colored returns a cell in a colour.
func Colored(c Color, text string) Cell { return Cell{text, c} }

// Row returns a row without colours.
func Row(texts ...string) []Cell {
	var row []Cell
	for _, s := range texts {
		row = append(row, Cell{Text: s})
	}
	return row
}

// A Color is the parameter of a terminal colour sequence. Colours never carry information that the text lacks.
type Color string

// The colours.
const (
	Red    Color = "31"
	Green  Color = "32"
	Yellow Color = "33"
)

// Paint colours text that is already safe. Without a colour it returns text unchanged.
func Paint(c Color, text string) string {
	if c == "" {
		return text
	}
	return "\x1b[" + string(c) + "m" + text + "\x1b[0m"
}
