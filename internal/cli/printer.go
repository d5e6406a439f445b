package cli

import (
	"fmt"
	"io"
	"slices"

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

// A list is the output of commands that print several objects.
type list[T any] struct {
	meta
	Items []T `json:"items"`
}

// newList returns a list of a kind; its items are never null in JSON.
func newList[T any](kind string, items []T) list[T] { return list[T]{newMeta(kind), nonNil(items)} }

// nonNil returns a copy of s that is never null in JSON.
func nonNil[T any](s []T) []T { return append([]T{}, s...) }

// mapped returns f of each item.
func mapped[T, R any](items []T, f func(T) R) (all []R) {
	for _, item := range items {
		all = append(all, f(item))
	}
	return all
}

// A result is one result in all output formats.
type result struct {
	object any             // for json and yaml; begins with a meta
	names  []string        // for name
	table  func(wide bool) // for table and wide: writes the output
	code   int             // exit code of the program after the output
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
		if _, err := t.Out.Write(text); err != nil {
			return err
		}
	case output.Name:
		for _, n := range a.names {
			fmt.Fprintln(t.Out, output.Escape(n))
		}
	default:
		a.table(format == output.Wide)
	}
	return exitError(a.code)
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

// writeTable writes rows, which have all columns. Without wide, it leaves out the additional columns.
func (t *tka) writeTable(wide bool, header, additional []string, rows [][]output.Cell) {
	if wide {
		header = slices.Concat(header, additional)
	}
	var visible [][]output.Cell
	for _, row := range rows {
		visible = append(visible, row[:len(header)])
	}
	output.WriteTable(t.Out, func(c output.Color, text string) string { return t.paint(t.Out, c, text) }, header, visible)
}

// printLine writes one line of output, and escapes it.
func (t *tka) printLine(format string, args ...any) {
	fmt.Fprintln(t.Out, output.Escape(fmt.Sprintf(format, args...)))
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
