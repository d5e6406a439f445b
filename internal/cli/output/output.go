// Package output formats tka's output for people and for programs: text, tables, JSON and YAML, and the errors of its commands. It keeps
// law 10: untrusted text cannot control a terminal, and a parser restores it unchanged. An error says once what was being done, with advice
// and an exit code. A misspelt word is an error that suggests the nearest valid word; tka never acts on a guess.
package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/tailplane/tailplane/internal/util/yamledit"
)

// maxText bounds how much of one untrusted text is shown.
const maxText = 4000

// Escape makes untrusted text harmless for a terminal. It escapes control characters, escape sequences, invisible characters and those that
// change the text direction. The result is one line.
func Escape(s string) string {
	if strings.IndexFunc(s, Unsafe) < 0 && len(s) <= maxText && utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		if b.Len() > maxText {
			b.WriteString("…")
			break
		}
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case Unsafe(r):
			b.WriteString(escapeRune(r))
		default:
			b.WriteRune(r)
		}
		s = s[n:]
	}
	return b.String()
}

// Unsafe reports whether r must not reach a terminal. unicode.IsPrint excludes control and format characters, including escapes and bidi
// marks, and all white space except the space.
func Unsafe(r rune) bool { return !unicode.IsPrint(r) }

func escapeRune(r rune) string {
	switch {
	case r == '\n':
		return `\n`
	case r == '\t':
		return `\t`
	case r < 0x80:
		return fmt.Sprintf(`\x%02x`, r)
	case r < 0x10000:
		return fmt.Sprintf(`\u%04x`, r)
	}
	return fmt.Sprintf(`\U%08x`, r)
}

// ShellQuote quotes s as one word of a POSIX shell, for commands that people copy.
func ShellQuote(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("./_-:@=+,", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// HumanDuration formats a duration for people: "7h59m", "8h", "12m", "40s".
func HumanDuration(d time.Duration) string {
	switch {
	case d < time.Minute:
		return d.Truncate(time.Second).String()
	case d >= 48*time.Hour:
		return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
	}
	s := strings.TrimSuffix(d.Truncate(time.Minute).String(), "0s")
	if d >= time.Hour && d%time.Hour < time.Minute {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

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

// The output formats.
const (
	Table = "table"
	Wide  = "wide"
	JSON  = "json"
	YAML  = "yaml"
	Name  = "name"
)

// Formats returns all output formats.
func Formats() []string { return []string{Table, Wide, JSON, YAML, Name} }

// Encode encodes v as JSON, or as YAML with the same fields in the same order. It escapes characters that are unsafe for a terminal;
// parsers restore them.
func Encode(v any, format string) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("write the answer: %w", err)
	}
	if format == JSON {
		return escapeQuoted(buf.Bytes(), JSON), nil
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(escapeQuoted(buf.Bytes(), YAML), &doc); err != nil { // JSON is YAML, apart from a rare escape
		return nil, fmt.Errorf("write the answer: %w", err)
	}
	restyle(&doc)
	text, err := yamledit.Encode(&doc, true)
	if err != nil {
		return nil, fmt.Errorf("write the answer: %w", err)
	}
	return escapeQuoted(text, YAML), nil
}

// restyle turns JSON nodes into plain YAML. It keeps double quotes for strings with characters that need an escape.
func restyle(n *yaml.Node) {
	n.Style = 0
	if n.Kind == yaml.ScalarNode && n.Tag == "!!str" && strings.IndexFunc(n.Value, Unsafe) >= 0 {
		n.Style = yaml.DoubleQuotedStyle
	}
	for _, c := range n.Content {
		restyle(c)
	}
}

// escapeQuoted escapes the unsafe characters of JSON, or of YAML in which each such character is in double quotes, as Encode produces it.
func escapeQuoted(text []byte, format string) []byte {
	var b strings.Builder
	for _, r := range string(text) {
		switch {
		case r == '\n' || !Unsafe(r):
			b.WriteRune(r)
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		case format == YAML:
			fmt.Fprintf(&b, `\U%08x`, r)
		default: // UTF-16, as in JSON
			r -= 0x10000
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		}
	}
	return []byte(b.String())
}
