package cli

import (
	"fmt"
	"io"

	"github.com/tailplane/tailplane/internal/cli/screen"
)

// colors returns the values of --color.
func colors() []string { return []string{"auto", "always", "never"} }

// meta is the beginning of every JSON and YAML output. Later versions only add fields to outputs.
type meta struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

func kind(k string) meta { return meta{"cli.tailplane.dev/v1alpha1", k} }

// An answer is one result in all output formats.
type answer struct {
	object any             // for json and yaml; begins with a meta
	names  []string        // for name
	table  func(wide bool) // for table and wide: writes the output
}

// show writes the answer in the requested format.
func (t *tka) show(a answer) error {
	form, err := t.form()
	if err != nil {
		return err
	}
	switch form {
	case screen.JSON, screen.YAML:
		text, err := screen.Encode(a.object, form)
		if err != nil {
			return err
		}
		_, err = t.Out.Write(text)
		return err
	case screen.Name:
		for _, n := range a.names {
			fmt.Fprintln(t.Out, screen.Safe(n))
		}
	default:
		a.table(form == screen.Wide)
	}
	return nil
}

// form returns the output format.
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

// paint colours text that is already safe, if w supports colours.
func (t *tka) paint(w io.Writer, c screen.Color, text string) string {
	if !t.colorful(w) {
		return text
	}
	return screen.Paint(c, text)
}

func (t *tka) writeTable(w io.Writer, header []string, rows [][]screen.Cell) {
	screen.WriteTable(w, func(c screen.Color, text string) string { return t.paint(w, c, text) }, header, rows)
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
