package cli

import (
	"fmt"
	"io"

	"github.com/tailplane/tailplane/internal/cli/screen"
)

// colors are what --color can be.
func colors() []string { return []string{"auto", "always", "never"} }

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

// paint colours text that is already safe, where w takes colours.
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
