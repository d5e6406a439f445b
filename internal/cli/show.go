package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tailplane/tailplane/internal/cli/yamltree"
	"go.yaml.in/yaml/v3"
)

// The forms of an answer.
const (
	asTable = "table"
	asWide  = "wide"
	asJSON  = "json"
	asYAML  = "yaml"
	asName  = "name"
)

var (
	outputs = []string{asTable, asWide, asJSON, asYAML, asName}
	colors  = []string{"auto", "always", "never"}
)

// meta begins the JSON and YAML forms of every answer. Fields of an answer are
// only ever added.
type meta struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

func kind(k string) meta { return meta{"cli.tailplane.dev/v1alpha1", k} }

// An answer is one result in all its forms.
type answer struct {
	object any             // for json and yaml; begins with a meta
	names  []string        // for name
	table  func(wide bool) // for table and wide: writes itself
}

// show writes the answer in the form that was asked for.
func (t *tka) show(a answer) error {
	form, err := t.form()
	if err != nil {
		return err
	}
	switch form {
	case asJSON, asYAML:
		text, err := encode(a.object, form)
		if err != nil {
			return err
		}
		_, err = t.Out.Write(text)
		return err
	case asName:
		for _, n := range a.names {
			fmt.Fprintln(t.Out, safe(n))
		}
	default:
		a.table(form == asWide)
	}
	return nil
}

// form is how the answer is to be written.
func (t *tka) form() (string, error) {
	if t.output != "" {
		return t.output, nil
	}
	set, err := t.settings()
	if err != nil {
		return "", err
	}
	return set.Output, nil
}

// encode writes v as JSON or as YAML with the same fields in the same order.
// Whatever could trouble a terminal is escaped; parsers read it back as it was.
func encode(v any, form string) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("write the answer: %w", err)
	}
	if form == asJSON {
		return escapeQuoted(buf.Bytes(), asJSON), nil
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(escapeQuoted(buf.Bytes(), asYAML), &doc); err != nil { // JSON is YAML, but for the rare escape
		return nil, fmt.Errorf("write the answer: %w", err)
	}
	restyle(&doc)
	text, err := yamltree.Encode(&doc, true)
	if err != nil {
		return nil, fmt.Errorf("write the answer: %w", err)
	}
	return escapeQuoted(text, asYAML), nil
}

// restyle turns the nodes of JSON into plain YAML; strings with characters that
// need an escape stay between double quotes.
func restyle(n *yaml.Node) {
	n.Style = 0
	if n.Kind == yaml.ScalarNode && n.Tag == "!!str" && strings.IndexFunc(n.Value, unsafeRune) >= 0 {
		n.Style = yaml.DoubleQuotedStyle
	}
	for _, c := range n.Content {
		restyle(c)
	}
}

// A cell is one field of a table, perhaps coloured.
type cell struct {
	text  string
	color color
}

// writeTable writes rows below a header, in columns that never wrap.
func (t *tka) writeTable(w io.Writer, header []string, rows [][]cell) {
	all := [][]cell{{}}
	for _, h := range header {
		all[0] = append(all[0], cell{text: h})
	}
	all = append(all, rows...)
	width := make([]int, len(header))
	for _, row := range all {
		for i := range row {
			row[i].text = safe(row[i].text)
			width[i] = max(width[i], utf8.RuneCountInString(row[i].text))
		}
	}
	for _, row := range all {
		var line strings.Builder
		for i, c := range row {
			line.WriteString(t.paint(w, c.color, c.text))
			if i < len(row)-1 {
				line.WriteString(strings.Repeat(" ", width[i]-utf8.RuneCountInString(c.text)+3))
			}
		}
		fmt.Fprintln(w, line.String())
	}
}

func plain(texts ...string) []cell {
	var row []cell
	for _, s := range texts {
		row = append(row, cell{text: s})
	}
	return row
}

// A color is the parameter of the terminal's colour sequence; it never carries
// a meaning that the words do not.
type color string

const (
	red    color = "31"
	green  color = "32"
	yellow color = "33"
)

// paint colours text that is already safe, where w takes colours.
func (t *tka) paint(w io.Writer, c color, text string) string {
	if c == "" || !t.colorful(w) {
		return text
	}
	return "\x1b[" + string(c) + "m" + text + "\x1b[0m"
}

func (t *tka) colorful(w io.Writer) bool {
	force := t.Getenv("CLICOLOR_FORCE")
	switch {
	case t.plain, t.color == "never":
		return false
	case t.color == "always":
		return true
	case t.Getenv("NO_COLOR") != "", t.Getenv("TERM") == "dumb":
		return false
	case force != "" && force != "0":
		return true
	}
	return isTerminal(w)
}

// short writes a duration as people say it: "7h59m", "8h", "12m", "40s".
func short(d time.Duration) string {
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
