package cli

import (
	"fmt"
	"io"

	"github.com/tailplane/tailplane/internal/cli/output"
)

// colors returns the values of --color.
func colors() []string { return []string{"auto", "always", "never"} }

// meta is the beginning of every JSON and YAML output. Later versions only add fields to outputs.
type meta struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

func newMeta(k string) meta { return meta{"cli.tailplane.dev/v1alpha1", k} }

// A result is one result in all output formats.
type result struct {
	object any             // for json and yaml; begins with a meta
	names  []string        // for name
	table  func(wide bool) // for table and wide: writes the output
}

// printResult writes the result in the requested format.
func (t *tka) printResult(a result) error {
	format, err := t.outputFormat()
	if err != nil {
		return err
	}
	switch format {
	case output.JSON, output.YAML:
		text, err := output.Encode(a.object, format)
		if err != nil {
			return err
		}
		_, err = t.Out.Write(text)
		return err
	case output.Name:
		for _, n := range a.names {
			fmt.Fprintln(t.Out, output.Escape(n))
		}
	default:
		a.table(format == output.Wide)
	}
	return nil
}

// outputFormat returns the output format.
func (t *tka) outputFormat() (string, error) {
	if t.output != "" {
		return t.output, nil
	}
	set, err := t.settings()
	if err != nil {
		return "", err
	}
	return set.Output, nil
}

// paint colours text that is already safe, if w supports colours.
func (t *tka) paint(w io.Writer, c output.Color, text string) string {
	if !t.useColor(w) {
		return text
	}
	return output.Paint(c, text)
}

func (t *tka) writeTable(w io.Writer, header []string, rows [][]output.Cell) {
	output.WriteTable(w, func(c output.Color, text string) string { return t.paint(w, c, text) }, header, rows)
}

func (t *tka) useColor(w io.Writer) bool {
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
