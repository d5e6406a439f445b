package cli

import (
	"bytes"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

var update = flag.Bool("update", false, "write the reference of the commands into docs/reference/cli")

// tree returns the program's commands, without a machine to run them on.
func tree() *cobra.Command {
	t := &tka{Program: Program{Args: []string{"tka"}, In: strings.NewReader(""), Out: &bytes.Buffer{}, Err: &bytes.Buffer{},
		Getenv: func(string) string { return "" }, Now: time.Now, Build: Build{Version: "devel"}}}
	root := t.root()
	root.InitDefaultHelpCmd()
	return root
}

// walk calls f for each visible command, parents first.
func walk(cmd *cobra.Command, f func(*cobra.Command)) {
	f(cmd)
	for _, c := range cmd.Commands() {
		if !c.Hidden {
			walk(c, f)
		}
	}
}

// The reference in docs matches the help texts of the commands.
func TestReference(t *testing.T) {
	dir := filepath.Join("..", "..", "docs", "reference", "cli")
	want := map[string]string{"README.md": index(tree())}
	walk(tree(), func(c *cobra.Command) {
		want[page(c)] = reference(c)
		want[filepath.Join("man1", manPage(c)+".1")] = manual(c)
	})
	if *update {
		if err := os.MkdirAll(filepath.Join(dir, "man1"), 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range want {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if _, ok := want[name]; !ok {
			t.Errorf("%s belongs to no command", name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range want {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(b) != text {
			t.Errorf("%s does not match the commands (%v); write it with: go test ./internal/cli -run TestReference -update", name, err)
		}
	}
}

func page(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "_") + ".md" }

func index(root *cobra.Command) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# tka\n\n<!-- Generated from the commands; do not edit. -->\n\n%s\n\n| command | |\n|---|---|\n", root.Long)
	walk(root, func(c *cobra.Command) {
		if c != root {
			fmt.Fprintf(&b, "| [`%s`](%s) | %s |\n", c.CommandPath(), page(c), c.Short)
		}
	})
	fmt.Fprintf(&b, "\n## Flags of every command\n\n%s\n## Exit codes\n\n| code | |\n|---|---|\n", flagTable(root.PersistentFlags()))
	for line := range strings.Lines(exitTable) {
		code, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		fmt.Fprintf(&b, "| %s | %s |\n", code, strings.TrimSpace(text))
	}
	return b.String()
}

func reference(c *cobra.Command) string {
	var b strings.Builder
	c.InitDefaultHelpFlag()
	fmt.Fprintf(&b, "# %s\n\n<!-- Generated from the commands; do not edit. -->\n\n%s.\n\n", c.CommandPath(), c.Short)
	if c.Runnable() {
		fmt.Fprintf(&b, "```\n%s\n```\n\n", c.UseLine())
	}
	if len(c.Aliases) > 0 {
		fmt.Fprintf(&b, "Also: `%s`\n\n", strings.Join(c.Aliases, "`, `"))
	}
	long, list, _ := strings.Cut(c.Long, "\n\n  ")
	if head, keys, ok := strings.Cut(c.Long, ":\n  "); ok && list == "" {
		long, list = head+":", keys
	}
	fmt.Fprintf(&b, "%s\n", long)
	if list != "" {
		fmt.Fprintf(&b, "\n```\n  %s\n```\n", list)
	}
	if c.Example != "" {
		fmt.Fprintf(&b, "\n## Examples\n\n```sh\n%s\n```\n", strings.ReplaceAll(strings.TrimPrefix(c.Example, "  "), "\n  ", "\n"))
	}
	if local := flagTable(c.NonInheritedFlags()); strings.Count(local, "\n") > 3 && c.HasParent() {
		fmt.Fprintf(&b, "\n## Flags\n\n%s", local)
	}
	if c.HasParent() && c.Runnable() {
		fmt.Fprintf(&b, "\nThe flags of every command and the exit codes are in the [overview](README.md).\n")
	}
	return b.String()
}

func manPage(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// roff escapes text for man, so that it contains no request and no escape.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`).Replace(s)
	return strings.ReplaceAll("\n"+s, "\n.", "\n\\&.")[1:]
}

// manual returns the manual page of a command in section 1.
func manual(c *cobra.Command) string {
	var b strings.Builder
	c.InitDefaultHelpFlag()
	fmt.Fprintf(&b, ".\\\" Generated from the commands; do not edit.\n.TH %q 1 \"\" \"tka\" \"tka\"\n", strings.ToUpper(manPage(c)))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(manPage(c)), roff(c.Short))
	if c.Runnable() {
		fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n", roff(c.UseLine()))
	}
	fmt.Fprintf(&b, ".SH DESCRIPTION\n")
	for i, part := range strings.Split(c.Long, "\n\n") {
		if i > 0 {
			b.WriteString(".PP\n")
		}
		if head, list, ok := strings.Cut(part, ":\n  "); ok {
			fmt.Fprintf(&b, "%s\n.PP\n.nf\n  %s\n.fi\n", roff(head+":"), roff(list))
		} else if strings.HasPrefix(part, "  ") {
			fmt.Fprintf(&b, ".nf\n%s\n.fi\n", roff(part))
		} else {
			fmt.Fprintf(&b, "%s\n", roff(part))
		}
	}
	options := func(title string, set *pflag.FlagSet) {
		first := true
		set.VisitAll(func(f *pflag.Flag) {
			if f.Hidden {
				return
			}
			if first {
				fmt.Fprintf(&b, ".SH %s\n", title)
				first = false
			}
			name := "--" + f.Name
			if f.Shorthand != "" {
				name = "-" + f.Shorthand + ", " + name
			}
			kind, usage := pflag.UnquoteUsage(f)
			if kind != "" {
				name += " " + kind
			}
			fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(name), roff(usage))
		})
	}
	if c.HasParent() {
		options("OPTIONS", c.NonInheritedFlags())
		options("OPTIONS OF EVERY COMMAND", c.InheritedFlags())
	} else {
		options("OPTIONS", c.PersistentFlags())
	}
	if c.Example != "" {
		fmt.Fprintf(&b, ".SH EXAMPLES\n.nf\n%s\n.fi\n", roff(strings.ReplaceAll(strings.TrimPrefix(c.Example, "  "), "\n  ", "\n")))
	}
	fmt.Fprintf(&b, ".SH EXIT STATUS\n.nf\n%s\n.fi\n", roff(exitTable))
	var also []string
	if c.HasParent() {
		also = append(also, manPage(c.Parent())+"(1)")
	}
	for _, sub := range c.Commands() {
		if !sub.Hidden {
			also = append(also, manPage(sub)+"(1)")
		}
	}
	if len(also) > 0 {
		fmt.Fprintf(&b, ".SH SEE ALSO\n%s\n", roff(strings.Join(also, ", ")))
	}
	return b.String()
}

func flagTable(set *pflag.FlagSet) string {
	var b strings.Builder
	b.WriteString("| flag | |\n|---|---|\n")
	set.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		kind, usage := pflag.UnquoteUsage(f)
		if kind != "" {
			name += " " + kind
		}
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "[]" && f.DefValue != "0s" && f.Name != "help" {
			usage += fmt.Sprintf(" (default %s)", f.DefValue)
		}
		fmt.Fprintf(&b, "| `%s` | %s |\n", name, strings.ReplaceAll(usage, "|", `\|`))
	})
	return b.String()
}

// SGN-18: every command has a description and an example, and handles -h and an unknown flag correctly.
func TestEveryCommand(t *testing.T) {
	var paths [][]string
	walk(tree(), func(c *cobra.Command) {
		paths = append(paths, strings.Fields(c.CommandPath()))
		switch {
		case c.Short == "":
			t.Errorf("c.Short is empty; %s", c.CommandPath())
		case c.Long == "":
			t.Errorf("c.Long is empty; %s", c.CommandPath())
		case c.Runnable() && c.Example == "":
			t.Errorf(`c.Runnable() && c.Example == ""; %s`, c.CommandPath())
		}
		if strings.HasSuffix(c.Short, ".") || len(c.Short) > 75 {
			t.Errorf("%s: the line should be short and have no full stop: %q", c.CommandPath(), c.Short)
		}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" {
				t.Errorf("%s: --%s says nothing", c.CommandPath(), f.Name)
			}
		})
	})
	if len(paths) < 18 {
		t.Fatalf("only %d commands: %v", len(paths), paths)
	}
	run := func(args ...string) (int, string, string) {
		var out, err bytes.Buffer
		home := t.TempDir()
		code := Program{Args: args, In: strings.NewReader(""), Out: &out, Err: &err, Now: time.Now, Build: Build{Version: "devel"},
			Getenv: func(k string) string { return map[string]string{"HOME": home}[k] }}.Run(t.Context())
		return code, out.String(), err.String()
	}
	for _, p := range paths {
		code, out, stderr := run(append(slices.Clone(p), "-h")...)
		switch {
		case code != 0:
			t.Errorf("code = %v, want 0; %v", code, p)
		case out == "":
			t.Errorf("out is empty; %v, code = %d, out = %s, stderr = %s", p, code, out, stderr)
		case stderr != "":
			t.Errorf("stderr = %q, want none; %v", stderr, p)
		}
		code, out, stderr = run(append(slices.Clone(p), "--nonsense")...)
		if p[len(p)-1] == "exit-codes" {
			continue // a topic, which has no flags
		}
		switch {
		case code != 2:
			t.Errorf("code = %v, want 2; %v", code, p)
		case out != "":
			t.Errorf("out = %q, want none; %v", out, p)
		case !strings.Contains(stderr, "has no flag --nonsense"):
			t.Errorf("stderr = %q does not contain %q; %v", stderr, "has no flag --nonsense", p)
		case strings.Count(stderr, "\n") > 3:
			t.Errorf(`strings.Count(stderr, "\n") = %v, want at most 3; %v`, strings.Count(stderr, "\n"), p)
		}
	}
}

// Every tka command in an example is valid: its words and flags exist.
func TestExamplesParse(t *testing.T) {
	walk(tree(), func(c *cobra.Command) {
		for line := range strings.Lines(c.Example) {
			fields := strings.Fields(strings.TrimPrefix(strings.TrimSuffix(strings.TrimSpace(line), ")"), "source <("))
			if len(fields) == 0 || fields[0] != "tka" {
				continue
			}
			if i := slices.IndexFunc(fields, func(f string) bool { return f == ">" || f == "|" }); i >= 0 {
				fields = fields[:i]
			}
			root := tree()
			cmd, rest, err := root.Find(fields[1:])
			if err != nil || cmd == root {
				t.Errorf("%s: example %q is not a command: %v", c.CommandPath(), line, err)
				continue
			}
			if err := cmd.ParseFlags(rest); err != nil {
				t.Errorf("%s: example %q: %v", c.CommandPath(), line, err)
			} else if err := cmd.ValidateArgs(cmd.Flags().Args()); err != nil {
				t.Errorf("%s: example %q: %v", c.CommandPath(), line, err)
			}
		}
	})
}
