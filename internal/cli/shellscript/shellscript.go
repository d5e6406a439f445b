// Package shellscript is text that shells run: words, assignments, prompts and
// the function that gives a shell its cluster. It keeps law 10: whatever a word
// holds, a shell reads it back as that word and runs none of it.
package shellscript

import (
	"fmt"
	"path/filepath"
	"strings"
)

// A Shell is one whose language is spoken here. Bash is for every POSIX shell.
type Shell string

// The shells.
const (
	Bash       Shell = "bash"
	Zsh        Shell = "zsh"
	Fish       Shell = "fish"
	PowerShell Shell = "powershell"
)

// Shells are the names of all.
func Shells() []string {
	return []string{string(Bash), string(Zsh), string(Fish), string(PowerShell)}
}

// Quote returns s as one word. The second result is false for what no word can
// hold: a zero byte.
func (s Shell) Quote(word string) (string, bool) {
	if strings.ContainsRune(word, 0) {
		return "", false
	}
	switch s {
	case Fish:
		return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(word) + "'", true
	case PowerShell: // which takes typographic quotes for quotes
		var b strings.Builder
		for _, r := range word {
			switch r {
			case '\'', '\u2018', '\u2019', '\u201a', '\u201b':
				b.WriteRune(r)
			}
			b.WriteRune(r)
		}
		return "'" + b.String() + "'", true
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'", true
}

// A Change is one of the environment: Name becomes Value, or goes if there is
// none. Names are the program's own, never a stranger's.
type Change struct {
	Name  string
	Value string // "": the variable goes
}

// Assign is what makes changes to the environment of a shell.
func (s Shell) Assign(changes []Change) (string, error) {
	var b strings.Builder
	for _, c := range changes {
		word, ok := s.Quote(c.Value)
		if !ok {
			return "", fmt.Errorf("%s cannot be %q in a shell", c.Name, c.Value)
		}
		switch gone := c.Value == ""; {
		case s == Fish && gone:
			fmt.Fprintf(&b, "set -e %s\n", c.Name)
		case s == Fish:
			fmt.Fprintf(&b, "set -gx %s %s\n", c.Name, word)
		case s == PowerShell && gone:
			fmt.Fprintf(&b, "Remove-Item -ErrorAction SilentlyContinue Env:%s\n", c.Name)
		case s == PowerShell:
			fmt.Fprintf(&b, "$env:%s = %s\n", c.Name, word)
		case gone:
			fmt.Fprintf(&b, "unset %s\n", c.Name)
		default:
			fmt.Fprintf(&b, "export %s=%s\n", c.Name, word)
		}
	}
	return b.String(), nil
}

// Prompt is what a prompt begins with inside a shell for cluster. Prompts are
// expanded once more each time they are shown, so nothing is in it that any
// shell could expand.
func Prompt(cluster string) string {
	plain := func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune(".-_:/@", r) {
			return r
		}
		return '?'
	}
	return "(tka:" + strings.Map(plain, cluster) + ") "
}

// A Start is how an interactive shell is started so that its prompt begins with
// a given text, after the person's own settings.
type Start struct {
	Args  []string
	Env   []string
	Files map[string]string // to be written into the folder first
}

// Interactive is the Start of the shell program at path. The folder is private,
// and its files are for this one shell; home and zdotdir are the person's own
// folder and that of zsh's settings, "" if it is the same.
func Interactive(path, prompt, folder, home, zdotdir string) Start {
	ps1 := prompt + "$ "
	start := Start{Env: []string{"PS1=" + ps1}}
	quoted, ok := Bash.Quote(prompt)
	if !ok {
		return start
	}
	switch name := strings.TrimSuffix(filepath.Base(path), ".exe"); name {
	case "bash":
		file := filepath.Join(folder, "bashrc")
		start.Args = []string{"--rcfile", file}
		start.Files = map[string]string{"bashrc": "[ ! -r ~/.bashrc ] || . ~/.bashrc\nPS1=" + quoted + "\"$PS1\"\n"}
	case "zsh":
		if zdotdir == "" {
			zdotdir = home
		}
		own, _ := Bash.Quote(zdotdir)
		ours, ok := Bash.Quote(folder)
		if strings.ContainsRune(zdotdir, 0) || !ok {
			return start
		}
		start.Env = append(start.Env, "ZDOTDIR="+folder)
		// zsh reads each of its files from the folder that $ZDOTDIR names by then.
		start.Files = map[string]string{
			".zshenv": "ZDOTDIR=" + own + "\n[[ ! -r $ZDOTDIR/.zshenv ]] || . $ZDOTDIR/.zshenv\nTKA_ZDOTDIR=$ZDOTDIR\nZDOTDIR=" + ours + "\n",
			".zshrc":  "ZDOTDIR=$TKA_ZDOTDIR\nunset TKA_ZDOTDIR\n[[ ! -r $ZDOTDIR/.zshrc ]] || . $ZDOTDIR/.zshrc\nPROMPT=" + quoted + "\"$PROMPT\"\n",
		}
	case "fish":
		word, _ := Fish.Quote(prompt)
		start.Args = []string{"-C", "functions -q fish_prompt; and functions -c fish_prompt tka_own_prompt; or function tka_own_prompt; echo '> '; end; " +
			"function fish_prompt; echo -n " + word + "; tka_own_prompt; end"}
	case "pwsh", "powershell":
		word, _ := PowerShell.Quote(prompt)
		start.Args = []string{"-NoExit", "-Command", "$function:global:tkaOwnPrompt = $function:prompt; function global:prompt { " + word + " + (tkaOwnPrompt) }"}
	}
	return start
}
